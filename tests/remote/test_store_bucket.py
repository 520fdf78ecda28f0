"""What lies in a store beside what a bucket put there is not the bucket's."""

from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from inside import read, set_constants
from places import Place
from store_proxy import proxy_before

import yogadl
from yogadl.errors import DatasetNotFoundError


def test_only_what_is_below_the_root_is_seen(any_place):
    name = any_place.url.split("/")[2]
    scheme = any_place.url.partition("://")[0]
    root = Place(f"{scheme}://{name}/root", any_place.options).open()
    beside = Place(f"{scheme}://{name}/rootless", any_place.options).open()
    whole = Place(f"{scheme}://{name}", any_place.options).open()
    root.put("name", b"root")
    beside.put("name", b"beside")
    assert [found.name for found in root.list()] == ["name"]
    assert [found.name for found in whole.list()] == ["root/name", "rootless/name"]
    assert read(whole, "rootless/name") == b"beside"


def test_what_a_console_puts_for_a_folder_is_no_object(s3_place):
    name = s3_place.url.split("/")[2]
    client = boto3.client(
        "s3", endpoint_url=s3_place.options["endpoint_url"], **s3_place.options["client_options"]
    )
    client.put_object(Bucket=name, Key="root/", Body=b"")
    client.put_object(Bucket=name, Key="root/folder/", Body=b"")
    bucket = Place(f"s3://{name}/root", s3_place.options).open()
    bucket.put("folder/name", b"")
    assert [found.name for found in bucket.list()] == ["folder/name"]


def test_a_list_comes_in_pages(s3_place):
    bucket = s3_place.open(extra_args={"MaxKeys": 3})
    names = [f"{number:02d}" for number in range(11)]
    for name in names:
        bucket.put(name, b"")
    assert [found.name for found in bucket.list()] == names


def test_a_list_of_more_than_google_sends_at_once_is_whole(gcs_place):
    bucket = gcs_place.open()
    names = [f"{number:04d}" for number in range(1_003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: bucket.put(name, b""), names))
    assert [found.name for found in bucket.list()] == names


def test_names_that_need_quoting_are_kept(any_place):
    names = ["a b", "a+b", "a%20b", "a#b", "a?b=c", "a&b", "ä/ö", "a=b", "a:b", "~a", "a'b", "a*(b)!",
             'a[b]{c}|^`<>"', "a%zz"]  # fmt: skip
    bucket = any_place.open()
    with proxy_before(any_place.options["endpoint_url"]) as proxy:
        reader = any_place.through(proxy.url).open()
        for name in names:
            tag = bucket.put(name, name.encode()).tag
            assert bytes(reader.fetch_range(name, 1, 3, tag=tag).content) == name.encode()[1:3], name
        assert all(
            one.headers["User-Agent"].endswith(" obstore") for one in proxy.requests if one.is_of_bytes
        )
    assert [found.name for found in bucket.list()] == sorted(names, key=str.encode)
    assert [read(bucket, name) for name in names] == [name.encode() for name in names]


def test_a_mistyped_id_in_a_large_bucket_is_said_after_a_look_at_its_first_objects(
    s3_place, tmp_path, monkeypatch
):
    set_constants(monkeypatch, MOST_FILES_LISTED=10)
    bucket = s3_place.open()
    for number in range(31):
        bucket.put(f"of/others/{number:02d}", b"")
    with proxy_before(s3_place.options["endpoint_url"]) as proxy:
        place = s3_place.through(proxy.url)
        options = {**place.options, "extra_args": {"MaxKeys": 10}, "mirror": tmp_path}
        storage = yogadl.open_storage(place.url, **options)
        storage.submit([1], "some/data", "1")
        proxy.requests.clear()
        with pytest.raises(DatasetNotFoundError, match="none of the first 10 files is of a dataset"):
            storage.fetch("some/dat", "1")
        lists = [request.path for request in proxy.requests if "list-type" in request.path]
    assert len(lists) <= 3  # the bucket, whether it is there; the versions; and one page of all


def test_a_mistyped_id_is_told_what_there_is(s3_place, tmp_path):
    storage = s3_place.storage(mirror=tmp_path)
    storage.submit([1], "some/data", "1")
    with pytest.raises(DatasetNotFoundError, match=r"it has the datasets \['some/data'\]"):
        storage.fetch("some/dat", "1")
