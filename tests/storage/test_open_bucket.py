"""A URL and options name a bucket."""

import subprocess
import sys

import pytest
from inside import open_bucket, read

import yogadl
from yogadl.errors import ConfigurationError
from yogadl.storage import open_storage


@pytest.mark.parametrize(
    "url",
    ["s3://bucket", "s3://bucket/some/root", "gs://bucket", "gs://bucket/some/root", "file:///some/folder"],
)
def test_a_bucket_is_known_by_its_url(url):
    assert open_bucket(url).url == repr(open_bucket(url)) == url


def test_slashes_around_the_prefix_do_not_count():
    assert open_bucket("s3://bucket/some/root/").url == "s3://bucket/some/root"
    assert open_bucket("gs://bucket/").url == "gs://bucket"


@pytest.mark.parametrize(
    ("location", "meant"),
    [
        ("s3:/bucket", "s3://bucket"),
        ("s3:bucket/root", "s3://bucket/root"),
        ("gs:/bucket", "gs://bucket"),
        ("gcs://bucket/root", "gs://bucket/root"),
        ("S3://bucket", "s3://bucket"),
        ("s3a://bucket", "s3://bucket"),
    ],
)
def test_a_mistyped_url_makes_no_folder_of_that_name(location, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'"):
        open_storage(location)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_called_like_a_scheme_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_storage("./s3:/bucket").location.endswith("s3:/bucket")


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "file:///folder"])
def test_a_mistyped_option_of_a_bucket_is_answered_with_all_that_there_are(url):
    names = ["mirror", "verify", "limits", "lease", "patience_s", "mapped", "offline", "foreign"]
    names += [] if url.startswith("file") else ["endpoint_url", "anonymous"]
    with pytest.raises(ConfigurationError, match="mirro: no option of") as caught:
        open_storage(url, mirro="never")
    listed = str(caught.value).partition("it takes ")[2].split(", ")
    assert set(names) <= set(listed)
    assert len(listed) == len(set(listed))
    assert not {"patience", "location", "shared", "options", "mirro"} & set(listed)


@pytest.mark.parametrize("shared", [False, True])
def test_a_mistyped_option_of_a_folder_is_answered_with_all_that_there_are(tmp_path, shared):
    with pytest.raises(ConfigurationError, match=r"mapt: no option of the folder .*; it takes") as caught:
        open_storage(tmp_path / "caches", shared=shared, mapt=False)
    listed = str(caught.value).partition("it takes ")[2].replace("; with shared=True: ", ", ").split(", ")
    assert listed == ["shared", "mapped", "foreign", "lease"]
    for name in listed:
        value = {"lease": yogadl.Lease(wait_s=1), "foreign": None}.get(name, False)
        open_storage(tmp_path / "caches", **{"shared": True, name: value} if value else {name: value})
    assert ("with shared=True" in str(caught.value)) is not shared


def test_a_folder_with_spaces_is_found(tmp_path):
    folder = tmp_path / "some folder"
    open_bucket(folder.as_uri()).put("name", b"content")
    assert (folder / "name").read_bytes() == b"content"
    assert read(open_bucket(folder.as_uri()), "name") == b"content"


@pytest.mark.parametrize(
    ("url", "package", "extra"), [("s3://b", "boto3", "s3"), ("gs://b", "google", "gcs")]
)
def test_a_missing_sdk_is_named_with_the_line_that_installs_it(url, package, extra):
    code = f"""
import sys
sys.modules[{package!r}] = None  # as if it was not installed
from yogadl.errors import MissingDependencyError
from yogadl.storage._remote.urls import open_bucket
bucket = open_bucket({url!r})
try:
    bucket.head("name")
except MissingDependencyError as error:
    sys.exit(0 if "pip install 'yogadl[{extra}]'" in str(error) else str(error))
sys.exit("no error")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr


def test_no_sdk_is_imported_before_it_is_used():
    code = """
import sys
from yogadl.storage._remote.urls import open_bucket
open_bucket("s3://bucket"), open_bucket("gs://bucket")
sys.exit(", ".join({"boto3", "botocore", "google", "requests", "urllib3"} & set(sys.modules)) or 0)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
