"""A bucket whose store or network fails gives the right data, or one clear error, in bounded time."""

import errno
import gc
import json
import logging
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pytest
from inside import ReplacedError, RetryPolicy, read, set_constants
from places import Place
from store_proxy import cuts, loses_the_answer, proxy_before, refuses, resets, stalls
from turns import by_turns

from yogadl.errors import CredentialsError, StorageError

CONTENT = random.Random(7).randbytes(3_000_001)
MIDDLE = 1_500_000
PATIENT = RetryPolicy(1, 60)
STEADY = RetryPolicy(10, 60)  # where requests are counted: a busy machine may well be silent for a second
BRISK = RetryPolicy(0.4, 60)  # where a request too many does no harm
IMPATIENT = RetryPolicy(0.5, 4.0)
# A trial may begin just before patience ends, and then be silent; the machine may be busy.
BOUND_S = 30


PASSING = {
    "reset": resets(),
    "reset in the body": resets(MIDDLE),
    "reset at the body's start": resets(0),
    "cut": cuts(MIDDLE),
    "stall": stalls(),
    "stall in the body": stalls(MIDDLE),
    "500": refuses(500, "InternalError"),
    "503": refuses(503, "SlowDown"),
}


def of_bytes(request):
    return request.is_of_bytes


def a_write(request):
    return request.is_write


def any_request(request):
    return True


class bounded:
    """Raise if what is inside takes too long."""

    def __enter__(self):
        self._begun = time.monotonic()

    def __exit__(self, *_):
        assert time.monotonic() - self._begun < BOUND_S


@pytest.mark.parametrize("happens", PASSING.values(), ids=PASSING.keys())
def test_a_read_that_fails_twice_gives_the_data(broken, happens):
    place, proxy = broken
    bucket = place.open(patience=BRISK)
    bucket.put("name", CONTENT)
    proxy.breaks(of_bytes, happens, times=2)
    assert read(bucket, "name") == CONTENT
    assert sum(request.is_of_bytes for request in proxy.requests) >= 2
    proxy.breaks(of_bytes, happens, times=1)
    assert read(bucket, "name", 100_003, 2_900_001) == CONTENT[100_003:2_900_001]


def test_a_body_is_taken_up_at_its_last_byte_and_of_the_same_object(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    tag = bucket.put("name", CONTENT).tag
    proxy.breaks(of_bytes, cuts(MIDDLE), times=1)
    assert read(bucket, "name") == CONTENT
    resumed = [request for request in proxy.requests if request.is_of_bytes][-1]
    assert resumed.headers["Range"] == f"bytes={MIDDLE}-{len(CONTENT) - 1}"
    assert resumed.headers["If-Match"] == tag or f"ifGenerationMatch={tag}" in resumed.path


def test_connections_that_never_last_still_give_the_data(broken):
    place, proxy = broken
    bucket = place.open(patience=STEADY)
    bucket.put("name", CONTENT)
    proxy.breaks(of_bytes, cuts(400_000))
    assert read(bucket, "name") == CONTENT
    assert sum(request.is_of_bytes for request in proxy.requests) == 8


# The lists of moto know an object's time as precisely as the other answers.
@pytest.mark.parametrize("broken", ["moto", "gcs"], indirect=True)
@pytest.mark.parametrize(
    "happens",
    [resets(), loses_the_answer, stalls(), refuses(503, "SlowDown"), refuses(500, "InternalError")],
    ids=["reset", "lost answer", "stall", "503", "500"],
)
def test_all_verbs_that_fail_twice_do_their_work(broken, happens):
    place, proxy = broken
    bucket = place.open(patience=BRISK)
    proxy.breaks(any_request, happens, times=2)
    assert bucket.put("a", b"content").size_bytes == 7
    proxy.breaks(any_request, happens, times=2)
    assert bucket.head("a") == next(bucket.list())
    proxy.breaks(any_request, happens, times=2)
    assert [found.name for found in bucket.list()] == ["a"]
    proxy.breaks(any_request, happens, times=2)
    assert bucket.put_if_absent("b", b"content")
    proxy.breaks(any_request, happens, times=2)
    bucket.delete("a")
    assert [found.name for found in bucket.list()] == ["b"]


def test_a_list_that_is_cut_is_asked_for_again(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    for name in ("a", "b", "c"):
        bucket.put(name, b"")
    proxy.breaks(lambda request: request.method == "GET", cuts(300), times=2)
    assert [found.name for found in bucket.list()] == ["a", "b", "c"]


def test_the_answer_to_a_put_that_lost_is_lost(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    bucket.put("name", b"theirs")
    proxy.breaks(lambda request: request.is_conditional_write, loses_the_answer, times=1)
    assert not bucket.put_if_absent("name", b"mine")
    assert read(bucket, "name") == b"theirs"


def test_one_of_many_writers_wins_although_answers_are_lost(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    dice = random.Random(3)
    proxy.breaks(lambda request: request.is_conditional_write and dice.random() < 0.5, loses_the_answer)
    for number in range(4):
        put = partial(bucket.put_if_absent, f"{number}")
        contents = [b"%d" % writer for writer in range(8)]
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(put, contents))
        assert won.count(True) == 1
        assert read(bucket, f"{number}") == contents[won.index(True)]
    assert sum(request.is_conditional_write for request in proxy.requests) > 4 * 8  # some came again


@pytest.mark.parametrize(
    ("happens", "times"),
    [(loses_the_answer, 1), (refuses(409, "ConditionalRequestConflict"), 2)],
    ids=["lost answer", "conflict"],
)
def test_a_committing_put_is_tried_again(broken, happens, times):
    place, proxy = broken
    bucket = place.open(patience=STEADY)
    proxy.breaks(lambda request: request.is_conditional_write, happens, times)
    assert bucket.put_if_absent("name", b"mine")
    assert sum(request.is_conditional_write for request in proxy.requests) == times + 1
    assert read(bucket, "name") == b"mine"


def test_a_conflict_that_never_ends_is_an_error(broken):
    place, proxy = broken
    bucket = place.open(patience=IMPATIENT)
    proxy.breaks(a_write, refuses(409, "ConditionalRequestConflict"))
    with bounded(), pytest.raises(StorageError, match=r"can't write .*/name: 409 .*Conflict.*tried"):
        bucket.put_if_absent("name", b"mine")
    assert read(place.open(), "name") is None


def test_many_readers_get_through_a_storm(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    bucket.put("name", CONTENT)
    proxy.breaks(any_request, refuses(503, "SlowDown", "Please reduce your request rate."), times=60)
    with ThreadPoolExecutor(16) as pool:
        parts = list(pool.map(lambda at: read(bucket, "name", at, at + 1_000), range(0, 16_000, 1_000)))
    assert b"".join(parts) == CONTENT[:16_000]


def test_waiting_for_long_is_told_and_its_end(broken, caplog, monkeypatch):
    set_constants(monkeypatch, RETRY_LOG_AFTER_S=1.5)
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    proxy.breaks(any_request, stalls(), times=3)
    with caplog.at_level(logging.WARNING, "yogadl"):
        assert bucket.head("name") is None
        assert bucket.head("name") is None
    away, back = (record.getMessage() for record in caplog.records)
    assert "trying again" in away
    assert "the store answers again" in back


WRITES = {"reset": resets(), "lost answer": loses_the_answer, "503": refuses(503, "SlowDown")}


@pytest.mark.parametrize(
    ("broken", "happens", "file_bytes"),
    [
        pytest.param(*case.values, size_bytes, id=f"{case.id}-{size_bytes}")
        for cases, size_bytes in (
            (by_turns(WRITES), 0),
            (by_turns(WRITES, 1), 5_000),
            (by_turns(WRITES), 20_000_003),  # in pieces, which each store takes in its own way
            (by_turns(WRITES, 1), 20_000_003),
        )
        for case in cases
    ],
    indirect=["broken"],
)
def test_a_file_gets_there_whole(broken, happens, file_bytes, tmp_path):
    place, proxy = broken
    content = random.Random(file_bytes).randbytes(file_bytes)
    (tmp_path / "file").write_bytes(content)
    bucket = place.open(patience=RetryPolicy(10, 60))
    odd = iter(range(1_000_000))
    proxy.breaks(lambda request: request.is_write and next(odd) % 2 == 0, happens, times=3)
    assert bucket.put("name", tmp_path / "file").size_bytes == file_bytes
    assert read(bucket, "name") == content


def test_credentials_that_expire_in_the_midst_are_said_at_once(s3_place):
    with proxy_before(s3_place.options["endpoint_url"]) as proxy:
        bucket = s3_place.through(proxy.url).open(patience=STEADY)
        bucket.put("name", CONTENT)
        proxy.breaks(of_bytes, cuts(MIDDLE), times=1)
        proxy.breaks(any_request, refuses(403, "ExpiredToken", "The provided token has expired."))
        begun = len(proxy.requests)
        with pytest.raises(
            StorageError, match=r"can't read .*/name: the credentials have expired: renew"
        ) as caught:
            read(bucket, "name")
        assert caught.value.errno == errno.EACCES
        assert len(proxy.requests) == begun + 2
        proxy.rules.clear()
        assert read(bucket, "name") == CONTENT


# google-auth leaves the answer open for which it can't renew the credentials; what is forgotten there is
# collected here, and not in some test that comes later.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_google_credentials_that_expire_in_the_midst_are_said_at_once(gcs_place):
    from google.oauth2.credentials import Credentials

    with proxy_before(gcs_place.options["endpoint_url"]) as proxy:
        credentials = Credentials("a-token", "a-refresh", None, f"{proxy.url}/token", "an-id", "a-secret")
        options = {"endpoint_url": proxy.url, "client_options": {"credentials": credentials}}
        bucket = Place(gcs_place.url, options).open(patience=PATIENT)
        bucket.put("name", CONTENT)
        proxy.breaks(of_bytes, cuts(MIDDLE), times=1)
        proxy.breaks(of_bytes, refuses(401, "authError", "Invalid Credentials"))
        proxy.breaks(lambda request: request.path == "/token", says_that_the_grant_is_revoked)
        with (
            bounded(),
            pytest.raises(StorageError, match=r"can't read .*/name: the credentials have expired") as caught,
        ):
            read(bucket, "name")
        assert caught.value.errno == errno.EACCES
        assert not [secret for secret in ("a-token", "a-refresh", "a-secret") if secret in repr(caught.value)]
    del caught, bucket
    gc.collect()


def says_that_the_grant_is_revoked(exchange):
    said = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
    exchange.answer(400, json.dumps(said).encode(), "application/json")


@pytest.mark.parametrize(
    ("broken", "status", "code", "mend"),
    [
        ("s3", 403, "InvalidAccessKeyId", "check the key and its secret"),
        ("s3", 401, "AuthFailure", "the credentials are wrong, or none are given"),
        ("s3", 401, "Other", "check the key and its secret"),
        ("s3", 400, "ExpiredToken", "renew them"),
        ("s3", 400, "AuthorizationHeaderMalformed", "give the right one"),
        ("s3", 404, "NoSuchBucket", "check its name"),
        ("s3", 501, "NotImplemented", "the store refused"),
        ("s3", 418, "Teapot", "the store refused"),
        ("gcs", 400, "reason", "the store refused"),
        ("gcs", 403, "reason", r"not allowed to: storage\.objects"),
        ("gcs", 412, "reason", "the store refused"),
    ],
    indirect=["broken"],
)
def test_each_refusal_says_what_to_do(broken, status, code, mend):
    place, proxy = broken
    bucket = place.open(patience=STEADY)
    proxy.breaks(any_request, refuses(status, code))
    is_google = place.url.startswith("gs:")
    look = (lambda: bucket.head("name")) if is_google else (lambda: read(bucket, "name"))
    for use in (look, lambda: bucket.put("name", b""), lambda: list(bucket.list())):
        with pytest.raises(StorageError, match=rf"some/root.*{mend}.*{status} {code}: said the test"):
            use()
    assert is_google or len(proxy.requests) == 3


@pytest.mark.parametrize(
    ("broken", "status", "kind"),
    [("s3", 401, CredentialsError), ("s3", 403, StorageError)],
    indirect=["broken"],
)
def test_an_answer_without_a_body_has_its_status_once(broken, status, kind):
    place, proxy = broken
    proxy.breaks(any_request, refuses(status, "AccessDenied"))
    with pytest.raises(StorageError, match=rf"\({status}: \w") as caught:
        place.open().head("name")
    assert type(caught.value) is kind


@pytest.mark.parametrize("broken", ["moto", "gcs"], indirect=True)
def test_a_refusal_of_anonymous_access_speaks_of_no_credentials_that_are_there(broken):
    place, proxy = broken
    bucket = Place(place.url, {"endpoint_url": proxy.url, "anonymous": True}).open()
    for status, says in ((403, "without other credentials are not"), (401, "or none are given")):
        proxy.rules.clear()
        proxy.breaks(any_request, refuses(status, "AccessDenied"))
        with pytest.raises(StorageError, match=says):
            read(bucket, "name")


def test_who_may_not_write_may_still_read(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    bucket.put("name", b"content")
    proxy.breaks(a_write, refuses(403, "AccessDenied", "Access Denied"))
    for use in (lambda: bucket.put("other", b""), lambda: bucket.put_if_absent("other", b"")):
        with pytest.raises(
            StorageError, match=r"can't write .*/other: .* not allowed to: s.*Access Denied"
        ) as caught:
            use()
        assert caught.value.errno == errno.EACCES
    assert read(bucket, "name") == b"content"
    assert [found.name for found in bucket.list()] == ["name"]


def test_who_may_not_list_may_still_read(broken):
    place, proxy = broken
    bucket = place.open(patience=PATIENT)
    bucket.put("name", b"content")
    is_list = lambda request: "list-type" in request.path or request.path.partition("?")[0].endswith("/o")  # noqa: E731
    proxy.breaks(is_list, refuses(403, "AccessDenied"))
    assert read(bucket, "name") == b"content"
    assert read(bucket, "other") is None
    with pytest.raises(StorageError, match=r"can't list"):
        list(bucket.list())


def test_a_missing_bucket_is_said_by_every_verb(any_place):
    scheme, _, _ = any_place.url.partition("://")
    bucket = Place(f"{scheme}://no-such-bucket/root", any_place.options).open(patience=PATIENT)
    for use in (
        lambda: read(bucket, "name"),
        lambda: bucket.head("name"),
        lambda: bucket.put("name", b""),
        lambda: bucket.put_if_absent("name", b""),
        lambda: list(bucket.list()),
    ):
        with (
            bounded(),
            pytest.raises(StorageError, match=r"no-such-bucket.*: there is no such bucket") as caught,
        ):
            use()
        assert caught.value.errno == errno.ENOENT


def test_an_endpoint_where_nothing_answers_is_said(any_place):
    bucket = any_place.through("http://127.0.0.1:1").open(patience=IMPATIENT)
    with (
        bounded(),
        pytest.raises(StorageError, match=r"can't read .*127\.0\.0\.1.*see whether the store is up"),
    ):
        bucket.head("name")


def test_an_endpoint_that_is_no_store_is_said(broken):
    place, proxy = broken
    bucket = place.open(patience=IMPATIENT)
    page = b"<html>Welcome!</html>"

    def says_welcome(exchange):
        exchange.answer(200, page, "text/html")

    proxy.breaks(any_request, says_welcome)
    for use in (lambda: read(bucket, "name"), lambda: bucket.head("name"), lambda: bucket.put("name", b"")):
        with bounded(), pytest.raises(StorageError, match="check the endpoint"):
            use()


def test_an_object_replaced_between_two_ranges_is_noticed(broken):
    place, _ = broken
    bucket = place.open(patience=PATIENT)
    tag = bucket.put("name", b"a" * 100).tag
    assert read(bucket, "name", 0, 50, tag=tag) == b"a" * 50
    bucket.put("name", b"b" * 100)
    with pytest.raises(ReplacedError, match=r"/name was replaced"):
        read(bucket, "name", 50, 100, tag=tag)


def test_a_clock_that_is_hours_off_is_said(s3_place):
    hours_off = 5

    def is_skewed(request):
        signed = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        theirs = time.time() + hours_off * 3600
        return abs(theirs - signed.timestamp()) > 15 * 60  # as AWS does

    with proxy_before(s3_place.options["endpoint_url"]) as proxy:
        bucket = s3_place.through(proxy.url).open(patience=PATIENT)
        proxy.breaks(is_skewed, refuses(403, "RequestTimeTooSkewed", "The difference is too large."))
        with pytest.raises(StorageError, match=r"clocks .* too far apart: set this one's"):
            bucket.put("name", b"")
        hours_off = 0
        bucket.put("name", b"")


def test_no_error_log_or_repr_has_the_secret(s3_place, caplog):
    secrets = [
        s3_place.options["client_options"][f"aws_{name}"] for name in ("access_key_id", "secret_access_key")
    ]
    with proxy_before(s3_place.options["endpoint_url"]) as proxy, caplog.at_level(logging.DEBUG, "yogadl"):
        bucket = s3_place.through(proxy.url).open(patience=RetryPolicy(0.2, 1))
        said = [repr(bucket), bucket.url]
        for happens in (stalls(), resets(), refuses(503, "SlowDown"), refuses(403, "SignatureDoesNotMatch")):
            proxy.rules.clear()
            proxy.breaks(any_request, happens)
            with pytest.raises(StorageError) as caught:
                bucket.put("name", b"")
            said += [str(caught.value), repr(caught.value), repr(pickle.loads(pickle.dumps(caught.value)))]
    text = "\n".join([*said, *(record.getMessage() for record in caplog.records)])
    assert not [secret for secret in secrets if secret in text]
    assert "the credentials are wrong" in text


def test_a_user_agent_of_our_own_is_sent(broken):
    place, proxy = broken
    bucket = place.open()
    bucket.put("name", b"content")
    read(bucket, "name")
    assert {"yogadl/" in request.headers["User-Agent"] for request in proxy.requests} == {True}


def test_anonymous_access_sends_no_credentials(moto_place):
    moto_place.open(extra_args={"ACL": "public-read"}).put("name", b"content")
    with proxy_before(moto_place.options["endpoint_url"]) as proxy:
        bucket = Place(moto_place.url, {"endpoint_url": proxy.url, "anonymous": True}).open()
        assert read(bucket, "name") == b"content"
        assert {"Authorization" in request.headers for request in proxy.requests} == {False}


def test_extra_arguments_go_with_every_request_that_takes_them(s3_place, tmp_path):
    with proxy_before(s3_place.options["endpoint_url"]) as proxy:
        extra = {"RequestPayer": "requester", "ServerSideEncryption": "AES256"}
        bucket = s3_place.through(proxy.url).open(extra_args=extra)
        (tmp_path / "file").write_bytes(b"content")
        bucket.put("name", b"content")
        bucket.put_if_absent("other", b"content")
        bucket.put("third", tmp_path / "file")
        read(bucket, "name")
        list(bucket.list())
        bucket.delete("name")
        assert {request.headers["x-amz-request-payer"] for request in proxy.requests} == {"requester"}
        for request in proxy.requests:
            assert (request.headers["x-amz-server-side-encryption"] == "AES256") == request.is_write
