"""Stores that check credentials, and stores that ignore what a write is conditional on."""

import errno

import pytest
from inside import PROBE, RetryPolicy, check_conditions, read
from places import Place

import yogadl
from yogadl.errors import ConfigurationError, StorageError

IMPATIENT = RetryPolicy(5, 10)


def test_a_store_that_ignores_conditions_is_refused(heedless_place):
    bucket = heedless_place.open(patience=IMPATIENT)
    with pytest.raises(ConfigurationError, match=r"(s3|gs)://.* ignores .*exclusive=False"):
        check_conditions(bucket)
    with pytest.raises(ConfigurationError, match="ignores"):
        check_conditions(bucket)
    with pytest.raises(ConfigurationError, match="exclusive=False"):
        heedless_place.storage().submit([1], "d", "1")


def test_it_is_used_if_the_caller_sees_to_it(rclone_place):
    rclone_place.storage(lease=yogadl.Lease(exclusive=False)).submit([1, 2], "d", "1")
    assert list(rclone_place.storage().fetch("d", "1").stream()) == [1, 2]


def test_a_store_that_keeps_conditions_is_probed_with_one_object(any_place):
    bucket = any_place.open(patience=IMPATIENT)
    check_conditions(bucket)
    first = bucket.head(PROBE)
    check_conditions(bucket)
    assert bucket.head(PROBE) == first
    assert [found.name for found in bucket.list()] == [PROBE]


@pytest.mark.parametrize("wrong", ["aws_access_key_id", "aws_secret_access_key"])
def test_wrong_credentials_are_said(rclone_place, wrong):
    options = {**rclone_place.options["client_options"], wrong: "SECRET-BUT-WRONG"}
    bucket = rclone_place.open(client_options=options, patience=IMPATIENT)
    for use in (lambda: read(bucket, "name"), lambda: bucket.put("name", b""), lambda: list(bucket.list())):
        with pytest.raises(StorageError, match="the credentials are wrong") as caught:
            use()
        assert caught.value.errno == errno.EACCES
        assert "SECRET" not in str(caught.value)


def test_missing_credentials_are_said(moto_endpoint, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = Place("s3://some-bucket", {"endpoint_url": moto_endpoint}).open(patience=IMPATIENT)
    with pytest.raises(
        StorageError, match=r"no credentials were found: set AWS_ACCESS_KEY_ID .*anonymous=True"
    ):
        bucket.put("name", b"")


def test_missing_google_credentials_are_said(gcs_endpoint, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    bucket = Place("gs://some-bucket", {"endpoint_url": gcs_endpoint}).open(patience=IMPATIENT)
    with pytest.raises(StorageError, match=r"no credentials were found: run 'gcloud auth .*anonymous=True"):
        bucket.put("name", b"")


@pytest.mark.parametrize(
    "options",
    [
        {"profile": "no-such-profile"},
        {"client_options": {"no_such": 1}},
        {"endpoint_url": "no url"},
        {"extra_args": {"no_such": 1}},
    ],
    ids=["profile", "client option", "endpoint", "extra argument"],
)
def test_options_that_boto3_refuses_are_said(options):
    with pytest.raises(ConfigurationError, match=r"no_such|no-such|no url"):
        Place("s3://some-bucket", options).open().head("name")


def test_options_that_the_google_sdk_refuses_are_said():
    bucket = Place("gs://some-bucket", {"client_options": {"no_such": 1}, "anonymous": True}).open()
    with pytest.raises(ConfigurationError, match="google-cloud-storage"):
        bucket.head("name")
