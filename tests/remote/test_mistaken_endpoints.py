"""A mistake in where the store is ends within seconds; a store that is away for a while is waited for."""

import pickle
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from inside import read, set_constants
from places import Place
from store_proxy import proxy_before, resets

import yogadl
from yogadl.errors import ConfigurationError, StorageError

# It takes some five seconds; two minutes are what is waited for a store that is away.
BOUND_S = 60
AWAY_S = 2.0
SCHEMES = ("s3", "gs")


def place_at(scheme, endpoint_url):
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    options = {"client_options": keys} if scheme == "s3" else {"anonymous": True}
    return Place(f"{scheme}://bucket/root", {"endpoint_url": endpoint_url, **options})


@contextmanager
def refusing_port():
    """A port that nobody listens at, and nobody else takes."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def assert_said_soon(place, folder):
    storage = place.storage(mirror=folder / "mirror", patience_s=100_000)
    for use in (lambda: storage.fetch("data", "1"), lambda: storage.submit([1], "data", "1")):
        begun = time.monotonic()
        with pytest.raises(StorageError, match=r"this endpoint has never answered: check its host"):
            use()
        assert time.monotonic() - begun < BOUND_S


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_port_that_refuses_is_said_within_seconds(scheme, tmp_path, monkeypatch):
    if scheme == "s3":  # the other waits as long as users do
        set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=0.5)
    with refusing_port() as port:
        assert_said_soon(place_at(scheme, f"http://127.0.0.1:{port}"), tmp_path)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_host_that_nobody_knows_is_said_within_seconds(scheme, tmp_path, monkeypatch):
    set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=0.5)
    assert_said_soon(place_at(scheme, "http://no-such-host.invalid:9000"), tmp_path)


def test_https_where_there_is_no_tls_is_said_within_seconds(any_place, tmp_path, monkeypatch):
    set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=0.5)
    endpoint = any_place.options["endpoint_url"]
    assert_said_soon(any_place.through(endpoint.replace("http://", "https://")), tmp_path)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "endpoint", ["minio:9000", "127.0.0.1:9000", "", "ftp://minio", "http://", "http://a b"]
)
def test_an_endpoint_without_its_scheme_is_refused_at_once(scheme, endpoint):
    place = place_at(scheme, endpoint)
    with pytest.raises(ConfigurationError, match=r"endpoint_url is not .* such as http://"):
        yogadl.open_storage(place.url, **place.options)


def test_an_emulator_without_its_scheme_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9000")
    storage = yogadl.open_storage("gs://bucket/root", anonymous=True, mirror=tmp_path)
    with pytest.raises(StorageError, match="the endpoint is no URL"):
        storage.fetch("data", "1")


@pytest.mark.parametrize(
    ("any_place", "is_pickled"),
    [("moto", False), ("moto", True), ("gcs", False), ("gcs", True)],
    indirect=["any_place"],
    ids=["s3-same", "s3-unpickled", "gcs-same", "gcs-unpickled"],
)
def test_a_store_that_restarts_is_waited_for(any_place, is_pickled, monkeypatch):
    # Shorter than the store is away.
    set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=AWAY_S / 10)
    endpoint = any_place.options["endpoint_url"]
    with proxy_before(endpoint) as proxy:
        bucket = any_place.through(proxy.url).open()
        bucket.put("name", b"content")
        proxy.breaks(lambda request: True, resets())  # what is connected still
    port = urlsplit(proxy.url).port
    assert port is not None
    over = threading.Event()

    def come_back():
        time.sleep(AWAY_S)
        with proxy_before(endpoint, port):
            over.wait(BOUND_S)

    back = threading.Thread(target=come_back)
    begun = time.monotonic()  # before it starts: a busy machine may stop this thread for seconds
    back.start()
    try:
        assert read(pickle.loads(pickle.dumps(bucket)) if is_pickled else bucket, "name") == b"content"
        assert time.monotonic() - begun > AWAY_S / 2
    finally:
        over.set()
        back.join()


@pytest.mark.parametrize("patience_s", [0, -1, "long"])
def test_a_patience_that_is_no_time_is_refused(patience_s):
    with pytest.raises(ConfigurationError, match="patience_s"):
        yogadl.open_storage("s3://bucket", patience_s=patience_s)


def test_a_folder_takes_no_patience(tmp_path):
    with pytest.raises(ConfigurationError, match="patience_s: no option of the folder"):
        yogadl.open_storage(tmp_path, patience_s=5)
