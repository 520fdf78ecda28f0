"""Ranges by obstore: what the SDK promises holds for them, and what obstore can not do the SDK does."""

import datetime
import ipaddress
import json
import logging
import os
import pickle
import random
import re
import signal
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import stores
from inside import PROGRESS_BYTES, ReplacedError, RetryPolicy, obstore_ranges, read, set_constants
from places import Place
from processes import in_child
from store_proxy import Request, cuts, proxy_before, refuses, resets, stalls

from yogadl.errors import StorageError

CONTENT = random.Random(11).randbytes(2_000_003)
MIDDLE = 1_000_000
PATIENT = RetryPolicy(1, 60)
STEADY = RetryPolicy(10, 60)
IMPATIENT = RetryPolicy(0.5, 1)
BOUND_S = 30


def of_range(request):
    return request.is_of_bytes and "Range" in request.headers


def by_obstore(request):
    return of_range(request) and request.headers["User-Agent"].endswith(" obstore")


def readers(proxy):
    """Return who has read ranges."""
    return {"obstore" if by_obstore(one) else "sdk" for one in proxy.requests if of_range(one)}


def fetched(bucket, start, stop, **more):
    found = bucket.fetch_range("name", start, stop, **more)
    assert found is not None
    return bytes(found.content)


def connect(place):
    """Return obstore's client, if it has one."""
    return place.open()._ranges._client().store


def said(caplog):
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    return [line for line in lines if "are read by the SDK" in line]


@pytest.fixture
def s3_place(moto_place):
    """A bucket in a store that no other process keeps busy: a range that is late is asked for once more."""
    return moto_place


of_s3 = pytest.mark.parametrize("broken", ["s3"], indirect=True)
of_google = pytest.mark.parametrize("broken", ["gcs"], indirect=True)


@pytest.fixture
def put(broken):
    """A bucket with one object, the proxy before it, and the object's tag."""
    place, proxy = broken
    tag = place.open().put("name", CONTENT).tag
    proxy.requests.clear()
    return place, proxy, tag


def test_ranges_are_read_by_obstore_and_whole_objects_by_the_sdk(put):
    place, proxy, tag = put
    bucket = place.open()
    assert fetched(bucket, 5, 50_000, tag=tag) == CONTENT[5:50_000]
    assert read(bucket, "name", 5, 1_500_000) == CONTENT[5:1_500_000]
    assert readers(proxy) == {"obstore"}
    proxy.requests.clear()
    assert read(bucket, "name") == CONTENT
    assert {one.headers["User-Agent"].endswith("obstore") for one in proxy.requests} == {False}


def test_a_range_is_asked_of_the_object_that_its_tag_names(put):
    place, proxy, tag = put
    fetched(place.open(), 5, 50, tag=tag)
    (request,) = [one for one in proxy.requests if of_range(one)]
    assert request.headers["Range"] == "bytes=5-49"
    assert request.headers.get("If-Match") == f'"{tag}"' or f"generation={tag}" in request.path


@pytest.mark.parametrize("stop", [None, len(CONTENT)], ids=["by the SDK", "by obstore"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["replaced", "deleted"])
def test_an_object_that_changes_while_it_breaks_off_is_noticed(put, stop, is_deleted):
    place, proxy, tag = put
    bucket = place.open(patience=PATIENT)

    def changes(exchange):
        exchange.send(exchange.ask(), MIDDLE)
        bucket.delete("name") if is_deleted else bucket.put("name", CONTENT[::-1])
        exchange.close()

    proxy.breaks(lambda request: request.is_of_bytes, changes, times=1)
    with pytest.raises(ReplacedError, match=r"/name was replaced or deleted"):
        fetched(bucket, 0, stop, tag=tag) if stop else read(bucket, "name")


def test_the_bytes_are_those_that_came_without_a_copy(put):
    place, _, _ = put
    found = place.open().fetch_range("name", 0, PROGRESS_BYTES)
    assert found is not None
    assert type(found.content.obj).__module__.startswith(("obstore", "pyo3"))
    assert (found.content.nbytes, found.content.itemsize) == (PROGRESS_BYTES, 1)


@pytest.mark.parametrize("more", [-1, 0, 1, PROGRESS_BYTES])
def test_ranges_of_any_length_are_read_by_obstore(put, more):
    place, proxy, tag = put
    assert (
        fetched(place.open(), 7, 7 + PROGRESS_BYTES + more, tag=tag) == CONTENT[7:][: PROGRESS_BYTES + more]
    )
    assert readers(proxy) == {"obstore"}


PASSING = {
    "reset": resets(),
    "reset in the body": resets(MIDDLE),
    "cut": cuts(MIDDLE),
    "stall": stalls(),
    "stall in the body": stalls(MIDDLE),
    "429": refuses(429, "TooManyRequests"),
    "500": refuses(500, "InternalError"),
    "503": refuses(503, "SlowDown"),
}


@pytest.mark.parametrize(
    ("broken", "name", "size_bytes"),
    [
        (("s3", "gcs")[(number + other) % 2], name, size_bytes)
        for number, name in enumerate(PASSING)
        for other, size_bytes in enumerate([50_000, 1_900_000])
    ],
    indirect=["broken"],
)
def test_a_fetch_that_fails_twice_gives_the_data_by_obstore(put, name, size_bytes, monkeypatch):
    set_constants(monkeypatch, OBSTORE_BUSY_FOR_S=0)
    place, proxy, tag = put
    bucket = place.open(patience=PATIENT)
    proxy.breaks(of_range, PASSING[name], times=2)
    assert fetched(bucket, 3, size_bytes, tag=tag) == CONTENT[3:size_bytes]
    is_busy = name in ("429", "503")  # then the SDK is asked for how long
    assert readers(proxy) == ({"obstore", "sdk"} if is_busy else {"obstore"})
    proxy.requests.clear()
    if is_busy:
        pause = threading.Event()
        while fetched(bucket, 3, size_bytes, tag=tag) and readers(proxy) == {"sdk"}:
            pause.wait(0.1)  # for a while, the SDK reads all
        proxy.requests.clear()
    assert fetched(bucket, 3, size_bytes, tag=tag) == CONTENT[3:size_bytes]
    assert readers(proxy) == {"obstore"}


def test_a_fetch_over_connections_that_never_last_gives_the_data(put):
    place, proxy, tag = put
    bucket = place.open(patience=STEADY)
    proxy.breaks(of_range, cuts(700_000))
    assert fetched(bucket, 0, len(CONTENT), tag=tag) == CONTENT


def test_a_silence_is_as_long_as_the_bucket_allows_and_a_slow_body_may_take_longer(put):
    place, proxy, tag = put
    step = len(CONTENT) // 4

    def dribbles(exchange):
        answer = exchange.ask()
        exchange.send(answer, 0)
        for at in range(0, len(answer.body), step):
            threading.Event().wait(0.3)  # in all more than one silence
            exchange.handler.connection.sendall(answer.body[at : at + step])

    proxy.breaks(of_range, dribbles)
    bucket = place.open(patience=RetryPolicy(1, 60))
    assert fetched(bucket, 0, len(CONTENT), tag=tag) == CONTENT
    # What does not arrive within the short limit is requested once more, and then takes as long as it needs.
    first = sum(of_range(one) for one in proxy.requests)
    assert first <= 2
    assert fetched(bucket, 0, len(CONTENT), tag=tag) == CONTENT
    assert sum(of_range(one) for one in proxy.requests) <= 3


def test_a_store_that_ignores_the_tag_is_noticed(put):
    place, proxy, tag = put
    place.open().put("name", CONTENT[::-1])

    def ignores(exchange):
        del exchange.request.headers["If-Match"]
        path = re.sub(r"generation=\d+|ifGenerationMatch=\d+", "", exchange.request.path)
        exchange.request = Request("GET", path, exchange.request.headers, 0)
        exchange.passes()

    proxy.breaks(of_range, ignores)
    with pytest.raises(ReplacedError):
        place.open().fetch_range("name", 5, 50, tag=tag)
    assert readers(proxy) == {"obstore"}


@pytest.mark.parametrize(
    ("status", "code", "mend"),
    [
        (403, "AccessDenied", r"not allowed to: s\w*\S*\.?(GetObject|objects\.get)"),
        (403, "ExpiredToken", "renew|not allowed"),
        (403, "SignatureDoesNotMatch", "check the key and its secret|not allowed"),
        (501, "NotImplemented", "the store refused"),
    ],
)
def test_a_refusal_is_said_in_the_sdks_words(put, status, code, mend, caplog):
    place, proxy, tag = put
    bucket = place.open(patience=STEADY)
    proxy.breaks(of_range, refuses(status, code))
    with caplog.at_level(logging.INFO, "yogadl"):
        for _ in range(5):
            with pytest.raises(StorageError, match=rf"can't read .*some/root/name: .*({mend}).*{status}"):
                fetched(bucket, 5, 50, tag=tag)
    assert not said(caplog)  # both are refused
    proxy.rules.clear()
    proxy.requests.clear()
    assert fetched(bucket, 5, 50, tag=tag) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}


REFUSALS = {
    "403": refuses(403, "SignatureDoesNotMatch"),
    "404": refuses(404, "NoSuchKey"),
    "412": refuses(412, "PreconditionFailed"),
    "501": refuses(501, "NotImplemented"),
}


@pytest.mark.parametrize("happens", REFUSALS.values(), ids=REFUSALS.keys())
def test_what_is_refused_to_obstore_alone_is_read_by_the_sdk_and_said_once(put, happens, caplog):
    place, proxy, tag = put
    bucket = place.open(patience=STEADY)
    proxy.breaks(by_obstore, happens)
    with caplog.at_level(logging.INFO, "yogadl"):
        for number in range(7):
            assert fetched(bucket, number, 50, tag=tag) == CONTENT[number:50]
        proxy.requests.clear()
        assert fetched(bucket, 5, 50, tag=tag) == CONTENT[5:50]
    assert readers(proxy) == {"sdk"}
    assert len(said(caplog)) == 1
    assert "refuses requests of obstore that it accepts from the SDK" in said(caplog)[0]


def test_a_passing_refusal_does_not_end_the_use_of_obstore(put):
    place, proxy, tag = put
    bucket = place.open(patience=STEADY)
    for _ in range(5):
        proxy.breaks(by_obstore, refuses(403, "ExpiredToken"), times=2)
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda at: fetched(bucket, at, at + 50, tag=tag), range(32)))
        proxy.rules.clear()
    proxy.requests.clear()
    fetched(bucket, 5, 50, tag=tag)
    assert readers(proxy) == {"obstore"}


def test_an_answer_with_all_of_the_object_is_read_by_the_sdk_or_refused(put):
    place, proxy, tag = put
    bucket = place.open(patience=STEADY)

    def sends_all(exchange):
        del exchange.request.headers["Range"]
        exchange.passes()

    proxy.breaks(of_range, sends_all)
    for use in (lambda: fetched(bucket, 5, 50, tag=tag), lambda: read(bucket, "name", 5, 50)):
        with pytest.raises(StorageError, match="the range"):
            use()
    assert fetched(bucket, 0, len(CONTENT), tag=tag) == CONTENT


def test_a_store_that_answers_ranges_with_200_is_read_by_the_sdk(rclone_place, caplog):
    bucket = rclone_place.open(patience=STEADY)
    bucket.put("name", CONTENT)
    with caplog.at_level(logging.INFO, "yogadl"):
        for number in range(5):
            assert fetched(bucket, number, 50) == CONTENT[number:50]
    assert len(said(caplog)) == 1


# What the SDK was given, and how it gets to obstore


def test_who_is_anonymous_signs_nothing(put, monkeypatch):
    place, proxy, _ = put
    if place.url.startswith("s3:"):
        place.open(extra_args={"ACL": "public-read"}).put("name", CONTENT)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    proxy.requests.clear()
    bucket = Place(place.url, {"endpoint_url": proxy.url, "anonymous": True}).open()
    assert fetched(bucket, 5, 50) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}
    assert not [one for one in proxy.requests if "Authorization" in one.headers]


@of_s3
def test_what_obstore_finds_in_the_environment_itself_has_no_effect(put, monkeypatch):
    place, proxy, _ = put
    of_obstore = {
        "AWS_ACCESS_KEY_ID": "other", "AWS_ENDPOINT": "http://127.0.0.1:1", "AWS_BUCKET": "other",
        "AWS_SKIP_SIGNATURE": "true", "AWS_S3_EXPRESS": "true", "AWS_REQUEST_PAYER": "true",
        "AWS_UNSIGNED_PAYLOAD": "true", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
    }  # fmt: skip
    for name, value in of_obstore.items():
        monkeypatch.setenv(name, value)
    assert fetched(place.open(), 5, 50) == CONTENT[5:50]
    (request,) = [one for one in proxy.requests if by_obstore(one)]
    assert f"Credential={stores.KEY}/" in request.headers["Authorization"]
    assert "x-amz-request-payer" not in request.headers


@pytest.mark.parametrize(
    ("broken", "options", "expected", "signed"),
    [
        ("s3", {"extra_args": {"RequestPayer": "requester"}}, {"x-amz-request-payer": "requester"},
         "x-amz-request-payer"),
        ("s3", {"client_options": {"aws_session_token": "a-token", "region_name": "eu-west-3"}},
         {"x-amz-security-token": "a-token"}, "/eu-west-3/s3/aws4_request"),
        ("gcs", {"user_project": "payer", "client_options": {"extra_headers": {"x-goog-custom": "value"}}},
         {"x-goog-user-project": "payer", "x-goog-custom": "value"}, ""),
    ],
    indirect=["broken"],
    ids=["requester pays", "session token", "google"],
)  # fmt: skip
def test_what_the_sdk_was_given_goes_along(put, options, expected, signed):
    place, proxy, _ = put
    given = {name: place.options.get(name, {}) | value if name == "client_options" else value
             for name, value in options.items()}  # fmt: skip
    assert fetched(place.open(**given), 5, 50) == CONTENT[5:50]
    (request,) = [one for one in proxy.requests if by_obstore(one)]
    assert {name: request.headers[name] for name in expected} == expected
    assert signed in request.headers.get("Authorization", "")


def test_buckets_are_addressed_as_the_sdk_addresses_them(s3_place, monkeypatch):
    from botocore.config import Config

    connected, addresses = obstore_ranges._connected, []

    def connecting(transport, patience_s):
        addresses.append(transport.config["endpoint"])
        return connected(transport, patience_s)

    monkeypatch.setattr(obstore_ranges, "_connected", connecting)
    keys = {**s3_place.options["client_options"], "region_name": "eu-west-3"}
    configs = [
        {},
        {"s3": {"addressing_style": "path"}},
        {"s3": {"addressing_style": "virtual"}},
        {"use_dualstack_endpoint": True},
    ]
    for config in configs:
        options = {"client_options": {**keys, "config": Config(**config)}}
        connect(Place("s3://a-bucket/root", options))
    connect(Place("s3://a.bucket/root", options))
    assert addresses == [
        "https://a-bucket.s3.eu-west-3.amazonaws.com",
        "https://s3.eu-west-3.amazonaws.com/a-bucket",
        "https://a-bucket.s3.eu-west-3.amazonaws.com",
        "https://a-bucket.s3.dualstack.eu-west-3.amazonaws.com",
        "https://s3.dualstack.eu-west-3.amazonaws.com/a.bucket",
    ]


@of_google
def test_the_emulator_of_the_environment_is_asked(put, monkeypatch):
    place, proxy, _ = put
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
    assert fetched(Place(place.url, {"anonymous": True}).open(), 5, 50) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}


CONFIG = """
[profile renewed]
region = us-east-1
credential_process = {python} -c "{script}" {count}
"""
SCRIPT = (
    "import datetime as d, json, pathlib, sys; p = pathlib.Path(sys.argv[1]); "
    "n = int(p.read_text()) + 1; p.write_text(str(n)); "
    "e = d.datetime.now(d.timezone.utc) + d.timedelta(seconds=3600 if n == 1 else 60); "
    "print(json.dumps(dict(Version=1, AccessKeyId='KEY-%d' % n, SecretAccessKey='hidden', "
    "SessionToken='t', Expiration=e.isoformat())))"
)


def key_of(request):
    return re.findall(r"Credential=([\w-]+)/", request.headers["Authorization"])[0]


@of_s3
def test_a_profiles_credentials_are_found_kept_and_renewed(put, tmp_path, monkeypatch):
    place, proxy, tag = put
    count, config = tmp_path / "count", tmp_path / "config"
    count.write_text("0")
    config.write_text(CONFIG.format(python=sys.executable, script=SCRIPT.replace('"', "'"), count=count))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    bucket = Place(place.url, {"endpoint_url": proxy.url, "profile": "renewed"}).open(patience=STEADY)
    for _ in range(20):
        fetched(bucket, 5, 50, tag=tag)
    assert {key_of(one) for one in proxy.requests} == {"KEY-1"}
    client = bucket._store._client().sdk
    client._request_signer._credentials._expiry_time -= datetime.timedelta(hours=1)
    proxy.breaks(lambda one: of_range(one) and key_of(one) == "KEY-1", refuses(403, "ExpiredToken"))
    for _ in range(20):
        assert fetched(bucket, 5, 50, tag=tag) == CONTENT[5:50]
    assert by_obstore(proxy.requests[-1])
    assert key_of(proxy.requests[-1]) != "KEY-1"


def google_credentials(proxy):
    from google.oauth2.credentials import Credentials

    return Credentials(None, "a-refresh", None, f"{proxy.url}/token", "an-id", "a-secret")


def gives_tokens(life_s):
    tokens = iter(range(1_000))

    def happens(exchange):
        granted = {"access_token": f"token-{next(tokens)}", "expires_in": life_s, "token_type": "Bearer"}
        exchange.answer(200, json.dumps(granted).encode(), "application/json")

    return happens


@of_google
def test_googles_credentials_are_kept_and_renewed(put):
    place, proxy, tag = put
    credentials = google_credentials(proxy)
    proxy.breaks(lambda one: one.path == "/token", gives_tokens(3600))
    options = {"endpoint_url": proxy.url, "client_options": {"credentials": credentials}}
    bucket = Place(place.url, options).open(patience=STEADY)
    for _ in range(20):
        fetched(bucket, 5, 50, tag=tag)
    seen = {one.headers["Authorization"] for one in proxy.requests if by_obstore(one)}
    assert seen == {"Bearer token-0"}
    credentials.expiry -= datetime.timedelta(hours=1)
    proxy.breaks(
        lambda one: of_range(one) and one.headers["Authorization"] == "Bearer token-0",
        refuses(401, "authError"),
    )
    for _ in range(20):
        assert fetched(bucket, 5, 50, tag=tag) == CONTENT[5:50]
    assert by_obstore(proxy.requests[-1])
    assert proxy.requests[-1].headers["Authorization"] == "Bearer token-1"


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "environment"])
def test_a_proxy_is_gone_through(put, monkeypatch, is_given):
    from botocore.config import Config

    place, proxy, tag = put
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    options = {**place.options, "endpoint_url": proxy.upstream}
    named = proxy.url.replace("://", "://user:pass%20word@")
    if is_given:
        if place.url.startswith("gs:"):
            pytest.skip("google-cloud-storage takes proxies from the environment alone")
        config = Config(proxies={"http": named})
        options["client_options"] = {**options["client_options"], "config": config}
    else:
        monkeypatch.setenv("http_proxy", named)
    assert fetched(Place(place.url, options).open(), 5, 50, tag=tag) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}
    (request,) = [one for one in proxy.requests if of_range(one)]
    assert request.path.startswith("http://")
    assert request.headers["Proxy-Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="


def test_a_proxy_that_the_environment_excepts_is_left_out(put, monkeypatch):
    place, proxy, tag = put
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    assert fetched(place.open(patience=PATIENT), 5, 50, tag=tag) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that nobody trusts, and its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        made.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@pytest.fixture(params=["s3_place", "gcs_place"], ids=["s3", "gcs"])
def encrypted(request, certificate):
    place = request.getfixturevalue(request.param)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with proxy_before(place.options["endpoint_url"], tls=context) as proxy:
        yield place.through(proxy.url), proxy, place.open().put("name", CONTENT).tag


@pytest.fixture(autouse=True)
def no_bundles(monkeypatch):
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("how", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "verify", "no verify"])
@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_certificate_of_ones_own_is_trusted(encrypted, certificate, how, monkeypatch):
    place, proxy, tag = encrypted
    more = {}
    if how.endswith("BUNDLE"):
        monkeypatch.setenv(how, str(certificate))
    else:
        verify = str(certificate) if how == "verify" else False
        more = {"client_options": {**place.options.get("client_options", {}), "verify": verify}}
    if place.url.startswith("gs:") and how != "REQUESTS_CA_BUNDLE":
        pytest.skip("google-cloud-storage has no such option")
    assert fetched(place.open(**more), 5, 50, tag=tag) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}


def test_a_certificate_that_nobody_trusts_is_refused(encrypted):
    place, proxy, tag = encrypted
    with pytest.raises(StorageError, match="certificate can't be verified"):
        fetched(place.open(patience=IMPATIENT), 5, 50, tag=tag)
    assert not proxy.requests


NOT_CARRIED_OVER = {
    "owner": ({"extra_args": {"ExpectedBucketOwner": "123456789012"}}, "x-amz-expected-bucket-owner"),
    "customer's key": (
        {"extra_args": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}},
        "x-amz-server-side-encryption-customer-key",
    ),
    "version 2": ({"config": {"signature_version": "s3"}}, "signatures None"),
    "acceleration": ({"config": {"s3": {"use_accelerate_endpoint": True}}}, "use_accelerate_endpoint"),
    "proxies_config": (
        {"config": {"proxies_config": {"proxy_use_forwarding_for_https": True}}},
        "options for a proxy",
    ),
    "client certificate": ({"config": {"client_cert": "/a/certificate"}}, "a client certificate"),
    "versions": ({"extra_args": {"VersionId": "5"}}, "arguments in a get's address"),
}


@pytest.mark.parametrize(("options", "reason"), NOT_CARRIED_OVER.values(), ids=NOT_CARRIED_OVER.keys())
def test_what_obstore_can_not_do_is_left_to_boto3_and_said_once(s3_place, options, reason, caplog):
    from botocore.config import Config

    client_options = {**s3_place.options["client_options"], "config": Config(**options.get("config", {}))}
    more = {"client_options": client_options, "extra_args": options.get("extra_args")}
    endpoint = (
        None if "acceleration" in reason or "accelerate" in reason else s3_place.options["endpoint_url"]
    )
    bucket = Place(s3_place.url, {"endpoint_url": endpoint, **more}).open()
    with caplog.at_level(logging.INFO, "yogadl"):
        for _ in range(3):
            assert bucket._ranges.fetch("name", 5, 50, None) is None
    assert len(said(caplog)) == 1
    assert reason in said(caplog)[0]


@of_s3
def test_the_sdk_reads_what_obstore_can_not(put):
    place, proxy, tag = put
    bucket = place.open(extra_args={"ExpectedBucketOwner": "123456789012"})
    assert fetched(bucket, 5, 50, tag=tag) == CONTENT[5:50]
    assert read(bucket, "name", 5, 50) == CONTENT[5:50]
    assert readers(proxy) == {"sdk"}
    with pytest.raises(ReplacedError):
        fetched(bucket, 5, 50, tag="another")


@of_google
@pytest.mark.parametrize(
    ("options", "reason"), [({"_http": None}, "_http"), ({"client_options": {"api_key": "a-key"}}, "api_key")]
)
def test_what_obstore_can_not_do_is_left_to_google(put, options, reason, caplog):
    import requests

    place, _, _ = put
    if "_http" in options:
        options = {"_http": requests.Session()}
    bucket = place.open(client_options=options)
    with caplog.at_level(logging.INFO, "yogadl"):
        assert bucket._ranges.fetch("name", 5, 50, None) is None
    assert len(said(caplog)) == 1
    assert reason in said(caplog)[0]


def test_without_obstore_ranges_are_read_by_the_sdk(put, monkeypatch, caplog):
    place, proxy, tag = put
    monkeypatch.setitem(sys.modules, "obstore", None)
    bucket = place.open()
    with caplog.at_level(logging.INFO, "yogadl"):
        for _ in range(3):
            assert fetched(bucket, 5, 50, tag=tag) == CONTENT[5:50]
        assert read(bucket, "name", 5, 50) == CONTENT[5:50]
    assert readers(proxy) == {"sdk"}
    assert len(said(caplog)) == 1
    assert "pip install obstore" in said(caplog)[0]


def test_a_missing_file_of_certificates_is_the_sdks_to_say(s3_place):
    options = {**s3_place.options["client_options"], "verify": "/no/such/file.pem"}
    endpoint = s3_place.options["endpoint_url"].replace("http:", "https:")
    bucket = Place(s3_place.url, {"endpoint_url": endpoint, "client_options": options}).open(
        patience=IMPATIENT
    )
    with pytest.raises((StorageError, OSError), match="file"):
        fetched(bucket, 5, 50)


def test_no_error_log_pickle_or_repr_has_a_secret(put, caplog):
    place, proxy, tag = put
    secrets = [stores.KEY, stores.SECRET, "a-refresh", "a-secret", "token-0"]
    if place.url.startswith("gs:"):
        proxy.breaks(lambda one: one.path == "/token", gives_tokens(3600))
        options = {"endpoint_url": proxy.url, "client_options": {"credentials": google_credentials(proxy)}}
        place = Place(place.url, options)
    told = []
    with caplog.at_level(logging.DEBUG, "yogadl"):
        bucket = place.open(patience=RetryPolicy(1, 2))
        fetched(bucket, 5, 50, tag=tag)
        if place.url.startswith("s3:"):  # what the caller passed as arguments goes along
            without = Place(place.url, {"endpoint_url": proxy.url, "profile": "some"}).open()
            assert not any(secret.encode() in pickle.dumps(without) for secret in secrets)
        told += [repr(bucket), repr(bucket._ranges._client()), repr(bucket._store.transport())]
        kept = list(proxy.rules)
        for happens in (stalls(), resets(), refuses(503, "SlowDown"), refuses(403, "AccessDenied")):
            proxy.rules[:] = kept
            proxy.breaks(of_range, happens)
            with pytest.raises(StorageError) as caught:
                fetched(bucket, 5, 50, tag=tag)
            told += [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    text = "\n".join([*told, *(record.getMessage() for record in caplog.records)])
    assert not [secret for secret in secrets if secret in text]


def test_an_unpickled_bucket_reads_by_obstore_anew(put):
    place, proxy, tag = put
    bucket = place.open()
    fetched(bucket, 5, 50, tag=tag)
    proxy.requests.clear()
    assert fetched(pickle.loads(pickle.dumps(bucket)), 5, 50, tag=tag) == CONTENT[5:50]
    assert readers(proxy) == {"obstore"}


# Forks: each in an interpreter of its own, since what would hang could not be ended otherwise


def forks(work):
    """Return whether `work` is true in a forked child; one that hangs is killed."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(BOUND_S)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def reads(bucket, tag):
    return all(fetched(bucket, at, at + 5_000, tag=tag) == CONTENT[at : at + 5_000] for at in range(20))


def uses_then_forks(place, tag):
    bucket = place.open(patience=STEADY)
    done = [reads(bucket, tag)]
    done += [forks(lambda: reads(bucket, tag)) for _ in range(2)]  # the same bucket
    done += [forks(lambda: reads(place.open(patience=STEADY), tag))]  # a new one
    done += [forks(lambda: forks(lambda: reads(bucket, tag)))]  # a grandchild
    done += [forks(lambda: read(bucket, "name", 0, MIDDLE) == CONTENT[:MIDDLE])]
    done += [reads(bucket, tag), reads(place.open(patience=STEADY), tag)]  # the parent goes on
    return done


def test_a_process_that_used_obstore_and_its_forked_children_all_go_on(put):
    place, proxy, tag = put
    assert all(in_child(uses_then_forks, place, tag, timeout_s=120))
    assert readers(proxy) == {"obstore", "sdk"}
    assert by_obstore([one for one in proxy.requests if of_range(one)][-1])


def forks_unused(place, tag):
    bucket = place.open(patience=STEADY)
    return [forks(lambda: reads(bucket, tag)), reads(bucket, tag), forks(lambda: reads(bucket, tag))]


def test_a_child_that_is_forked_before_obstore_is_loaded_uses_it(put):
    place, proxy, tag = put
    assert all(in_child(forks_unused, place, tag, timeout_s=120))
    ranges = [one for one in proxy.requests if of_range(one)]
    assert [by_obstore(one) for one in ranges] == [True] * 40 + [False] * 20


def forks_while_threads_read(place, tag):
    bucket = place.open(patience=STEADY)
    reads(bucket, tag)  # a fork in the midst of imports is nobody's to mend
    with ThreadPoolExecutor(8) as pool:
        under_way = [pool.submit(reads, bucket, tag) for _ in range(32)]
        children = [forks(lambda: reads(bucket, tag)) for _ in range(4)]
        return [*children, *(one.result() for one in under_way)]


def test_forks_beside_threads_that_read_disturb_nobody(put):
    place, _, tag = put
    assert all(in_child(forks_while_threads_read, place, tag, timeout_s=200))


def leaves_by_the_front_door(place, tag):
    bucket = place.open(patience=STEADY)
    assert reads(bucket, tag)
    child = os.fork()
    if not child:
        signal.alarm(BOUND_S)
        del bucket
        sys.exit(0)  # with all that an interpreter tidies up at its end
    os.waitpid(child, 0)
    return reads(bucket, tag)


def test_a_forked_child_that_tidies_up_does_not_disturb_its_parent(put):
    place, _, tag = put
    assert in_child(leaves_by_the_front_door, place, tag, timeout_s=120)
