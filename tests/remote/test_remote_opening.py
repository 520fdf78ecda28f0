"""How storages in buckets are opened: as now, and as yogadl 0.1.4 did."""

import inspect
import pickle
import warnings

import pytest

import yogadl
from yogadl.errors import ConfigurationError
from yogadl.storage import GCSConfigurations, GCSStorage, S3Configurations, S3Storage


def bucket_and_prefix(place):
    bucket, _, prefix = place.url.partition("://")[2].partition("/")
    return bucket, prefix


def test_the_configurations_have_the_parameters_of_0_1_4():
    lock_server = ["local_cache_dir", "skip_verify", "coordinator_cert_file", "coordinator_cert_name"]
    where = ["bucket", "bucket_directory_path", "url"]
    s3 = [*where, "access_key", "secret_key", "endpoint_url", *lock_server]
    assert list(inspect.signature(S3Configurations).parameters) == s3
    assert list(inspect.signature(GCSConfigurations).parameters) == [*where, *lock_server]
    for storage in (S3Storage, GCSStorage):
        *old, new = inspect.signature(storage).parameters.values()
        assert [parameter.name for parameter in old] == ["configurations", "tensorflow_config"]
        assert (new.name, new.kind) == ("verify", inspect.Parameter.KEYWORD_ONLY)


def test_the_classes_of_0_1_4_compare_what_is_read_by_range_if_told(tmp_path):
    s3 = S3Configurations("bucket", "root", local_cache_dir=tmp_path)
    gcs = GCSConfigurations("bucket", "root", local_cache_dir=tmp_path)
    for make in (lambda verify: S3Storage(s3, verify=verify), lambda verify: GCSStorage(gcs, verify=verify)):
        with pytest.raises(ConfigurationError, match="verify must be None or 'block', not 'all'"):
            make("all")
        storage = pickle.loads(pickle.dumps(make("block")))
        assert storage._backend.catalogue.opener._verify == "block"


def test_a_program_for_0_1_4_runs_on_s3(s3_place, tmp_path):
    bucket, prefix = bucket_and_prefix(s3_place)
    keys = s3_place.options["client_options"]
    with pytest.warns(DeprecationWarning, match="url: an option of the lock server"):
        configurations = S3Configurations(
            bucket,
            prefix,
            "ws://lock-server:10245",
            keys["aws_access_key_id"],
            keys["aws_secret_access_key"],
            s3_place.options["endpoint_url"],
            str(tmp_path),
        )
    with pytest.warns(DeprecationWarning, match="tensorflow_config"):
        storage = S3Storage(configurations, object())

    @storage.cacheable("data", "1")
    def numbers():
        return range(7)

    assert list(numbers().stream()) == list(range(7))
    assert storage.location == s3_place.url
    assert (tmp_path / "yogadl").is_dir()
    again = s3_place.storage(mirror=tmp_path / "mirror")
    assert again.datasets() == ["data"]


def test_without_a_lock_server_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        S3Storage(S3Configurations("bucket", "some/folder"))
        storage = GCSStorage(GCSConfigurations("bucket", "/"))
    assert storage.location == "gs://bucket"


@pytest.mark.parametrize(
    "options", [{"skip_verify": True}, {"coordinator_cert_file": "f"}, {"coordinator_cert_name": "n"}]
)
def test_what_is_of_the_lock_server_warns(options):
    with pytest.warns(DeprecationWarning, match=next(iter(options))):
        GCSConfigurations("bucket", "folder", **options)


def test_opening_asks_nothing_of_the_bucket_and_makes_no_folder(tmp_path):
    storage = yogadl.open_storage(
        "s3://bucket/prefix", endpoint_url="http://127.0.0.1:9", mirror=tmp_path / "mirror"
    )
    assert storage.location == "s3://bucket/prefix"
    assert repr(pickle.loads(pickle.dumps(storage))) == repr(storage) == "CacheStorage('s3://bucket/prefix')"
    assert not (tmp_path / "mirror").exists()


def test_keys_that_are_given_are_in_no_repr_and_no_error(s3_place, tmp_path):
    keys = {
        "aws_access_key_id": "wrong-key",
        "aws_secret_access_key": "the-secret",
        "region_name": "us-east-1",
    }
    storage = yogadl.open_storage(
        "s3://no-such-bucket/x",
        endpoint_url=s3_place.options["endpoint_url"],
        client_options=keys,
        mirror=tmp_path / "mirror",
    )
    with pytest.raises(OSError, match="no-such-bucket") as caught:
        storage.fetch("data", "1")
    shown = f"{storage!r} {storage.__dict__} {caught.value} {caught.value.__cause__}"
    assert "the-secret" not in shown


@pytest.mark.parametrize(
    ("location", "options", "match"),
    [
        ("s3://", {}, "is not the URL of a bucket"),
        ("ftp://bucket/prefix", {}, "is not the URL of a bucket"),
        ("s3://bucket", {"regoin": "x"}, "regoin"),
        ("s3://bucket", {"shared": True}, "shared"),
        ("s3://bucket", {"lease_ttl_s": 0}, r"give lease=yogadl\.Lease\(ttl_s=\.\.\.\)"),
        ("s3://bucket", {"mirror": 3}, "Mirror: path"),
        ("caches", {"mirror": "m"}, "mirror"),
        ("caches", {"lease": yogadl.Lease(wait_s=5)}, "lease"),
        ("caches", {"shared": True, "lease": yogadl.Lease(exclusive=False)}, "exclusive=False"),
        ("caches", {"endpoint_url": "http://x"}, "endpoint_url"),
        ("caches", {"shared": True, "mirror_limit": 5}, r"give mirror=yogadl\.Mirror\(limit="),
    ],
)
def test_options_that_make_no_sense_are_refused(location, options, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=match):
        yogadl.open_storage(location, **options)
    assert not (tmp_path / "caches").exists()
