"""Storages in a bucket when store, network, clocks or people fail: the right data, or a clear error, soon."""

import errno
import itertools
import json
import pickle
import re
import shutil
import time

import numpy as np
import pytest
from inside import RetryPolicy, read
from processes import Process, wait_until
from store_proxy import loses_the_answer, proxy_before, refuses, resets

import yogadl
from yogadl.errors import CacheFormatError, CredentialsError, DatasetNotFoundError, StorageError

HOUR_S, DAY_S = 3_600.0, 86_400.0
IMPATIENT = RetryPolicy(1, 2)
# The machine may be busy.
BOUND_S = 60
RECORDS = np.arange(3_001) * 3


@pytest.fixture
def opened(tmp_path):
    """Open storages, each as a machine of its own would."""
    numbers = itertools.count()

    def open_as_a_machine(place, **options):
        mirror = tmp_path / f"mirror-{next(numbers)}"
        return place.storage(**{"mirror": mirror, **options})

    return open_as_a_machine


@pytest.fixture
def proxied(s3_place):
    """A fresh bucket in S3, where a request tells the name of its object, and the proxy that leads to it."""
    with proxy_before(s3_place.options["endpoint_url"]) as proxy:
        yield s3_place.through(proxy.url), proxy


def submit(storage, version="1", records=RECORDS):
    storage.submit(records, "some/data", version, build=yogadl.BuildOptions(part_bytes=4_096))


def assert_served(storage, version="1"):
    ref = storage.fetch("some/data", version)
    assert np.array_equal(ref.gather(range(len(RECORDS))), RECORDS)


def of_manifests(request):
    return request.is_write and "/versions/" in request.path


def of_parts(request):
    return request.is_write and "/parts/" in request.path


def names(bucket, pattern):
    return [found.name for found in bucket.list() if re.search(pattern, found.name)]


# The network.


def test_a_publication_whose_answer_was_lost_is_one(proxied, opened):
    place, proxy = proxied
    proxy.breaks(of_manifests, loses_the_answer, times=1)
    storage = opened(place)
    calls = []

    @storage.cacheable("some/data", "1")
    def data():
        calls.append(1)
        return RECORDS

    assert np.array_equal(data().gather(range(len(RECORDS))), RECORDS)
    assert calls == [1]
    assert storage.versions("some/data") == ["1"]


def test_every_second_answer_to_a_conditional_write_may_be_lost(broken, opened):
    place, proxy = broken
    count = itertools.count()
    proxy.breaks(lambda request: request.is_conditional_write and next(count) % 2 == 0, loses_the_answer)
    storage = opened(place)
    for version in ("1", "2"):
        storage.cacheable("some/data", version)(lambda: RECORDS)()
        assert storage.info("some/data", version).builder["lease_epoch"] == 1
        assert_served(storage, version)
    assert next(count) >= 4


def test_parts_arrive_through_a_network_that_breaks_off(broken, opened):
    place, proxy = broken
    count = itertools.count()
    proxy.breaks(lambda request: request.is_write and next(count) % 3 == 0, resets())
    submit(opened(place))
    assert_served(opened(place))


def test_a_manifest_that_can_not_be_put_ends_the_build_soon(proxied, opened):
    place, proxy = proxied
    proxy.breaks(of_manifests, refuses(503, "SlowDown"))
    storage = opened(place, patience=IMPATIENT)
    started = time.monotonic()
    with pytest.raises(StorageError, match="SlowDown"):
        submit(storage)
    assert time.monotonic() - started < BOUND_S
    assert storage.datasets() == []
    proxy.rules.clear()
    submit(opened(place))
    assert_served(storage)
    assert storage.info("some/data", "1").builder["lease_epoch"] == 2


def test_a_build_that_fails_while_the_store_is_away_keeps_nobody_waiting_once_it_is_back(proxied, opened):
    place, proxy = proxied

    def numbers():
        yield 1
        proxy.breaks(lambda _: True, refuses(503, "SlowDown"))
        raise ConnectionResetError("gone")

    storage = opened(place, patience=IMPATIENT)
    with pytest.raises(ConnectionResetError):
        submit(storage, records=numbers())
    proxy.rules.clear()
    submit(opened(place, lease=yogadl.Lease(wait_s=100)))  # a third of the time to live
    assert_served(storage)
    assert storage.info("some/data", "1").builder["lease_epoch"] == 2


def test_credentials_that_expire_in_the_middle_publish_nothing_and_the_next_build_goes_on(proxied, opened):
    place, proxy = proxied
    sent = []
    expired = refuses(403, "ExpiredToken")
    proxy.breaks(lambda request: of_parts(request) and (sent.append(request) or len(sent)) > 4, expired)
    storage = opened(place, patience=RetryPolicy(10, 60))
    with pytest.raises(StorageError, match="expired") as caught:
        submit(storage)
    assert caught.value.errno == errno.EACCES
    assert storage.datasets() == []
    proxy.rules.clear()
    before = len(proxy.requests)
    submit(opened(place))
    assert_served(storage)
    # Index and part: two requests for each of those that were still missing, and no more.
    parts = storage.info("some/data", "1").parts
    assert sum(map(of_parts, proxy.requests[before:])) == 2 * parts - 4


# Permissions.


def test_a_reader_needs_no_permission_to_write(broken, opened):
    place, proxy = broken
    builder = opened(place)
    builder.cacheable("some/data", "1")(lambda: RECORDS)()
    submit(builder, "2", RECORDS[:100])
    proxy.breaks(lambda request: request.is_write or request.method == "DELETE", refuses(403, "AccessDenied"))
    proxy.requests.clear()
    storage = opened(place)
    assert_served(storage)
    assert storage.cacheable("some/data", "1")(lambda: RECORDS)()[5] == 15
    assert pickle.loads(pickle.dumps(storage.fetch("some/data", "2")))[7] == 21
    assert storage.datasets() == ["some/data"]
    assert storage.versions("some/data") == ["1", "2"]
    storage.explain("some/data", "1", "2")
    storage.verify("some/data", "1")
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("some/data", "3")
    assert {"GET"} <= {request.method for request in proxy.requests} <= {"GET", "HEAD"}


def test_wrong_credentials_are_one_error_and_no_warning(broken, opened, caplog):
    place, proxy = broken
    proxy.breaks(lambda request: True, refuses(401, "AuthFailure"))
    with pytest.raises(CredentialsError):
        submit(opened(place))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_who_may_not_write_is_told_so_before_anything_is_built(broken, opened):
    place, proxy = broken
    proxy.breaks(lambda request: request.is_write, refuses(403, "AccessDenied"))
    calls = []

    def data():
        calls.append(1)
        return RECORDS

    with pytest.raises(StorageError, match="not allowed") as caught:
        opened(place).cacheable("some/data", "1")(data)()
    assert caught.value.errno == errno.EACCES
    assert calls == []


# Stores that can't decide.


# Damage.


@pytest.mark.parametrize(
    ("either_place", "what"), [("s3", "part"), ("gcs", "index"), ("s3", "table")], indirect=["either_place"]
)
def test_what_is_missing_from_the_bucket_is_an_error_that_names_it(what, either_place, opened):
    submit(opened(either_place))
    bucket = either_place.open()
    ending = {"part": r"\.mdb$", "index": r"\.idx$", "table": r"\.parts$"}[what]
    bucket.delete(names(bucket, ending)[0])
    storage = opened(either_place)
    with pytest.raises(CacheFormatError, match=r"some/data.*missing"):
        storage.verify("some/data", "1")
    if what == "index":  # which reading does not need
        assert_served(storage)
    else:
        with pytest.raises(CacheFormatError, match="some/data"):
            storage.fetch("some/data", "1")


def test_an_altered_part_is_never_read_and_verify_names_records(either_place, opened):
    builder = opened(either_place)
    submit(builder)
    bucket = either_place.open()
    (name,) = names(bucket, builder.fetch("some/data", "1")._records.open()[1].parts.table.sha256[1] + ".mdb")
    content = bytearray(read(bucket, name) or b"")
    at = content.index(RECORDS[600:610].tobytes())
    content[at] ^= 1
    bucket.put(name, bytes(content))
    storage = opened(either_place)
    with pytest.raises(CacheFormatError, match="some/data"):
        storage.fetch("some/data", "1")
    with pytest.raises(CacheFormatError, match=r"'some/data' version '1': field '', records \d+ to \d+"):
        storage.verify("some/data", "1")
    assert_served(builder)  # from its own mirror, which is sound


def altered(place, change):
    bucket, name = place.open(), "some/data/versions/1.json"
    document = json.loads(read(bucket, name) or b"")
    change(document)
    bucket.put(name, json.dumps(document).encode())


def test_a_digest_tells_an_altered_manifest(either_place, opened):
    builder = opened(either_place)
    submit(builder)
    digest = builder.info("some/data", "1").digest
    altered(either_place, lambda document: document.update(records=3_000))
    with pytest.raises(CacheFormatError, match="digest"):
        opened(either_place).fetch("some/data", "1", digest=digest)
    with pytest.raises(CacheFormatError, match="3001 records, but the manifest says 3000"):
        opened(either_place).fetch("some/data", "1")


def test_a_manifest_leads_nowhere_else(s3_place, opened):
    submit(opened(s3_place))
    storage = opened(s3_place)
    for table in ("../../../secret", "/etc/passwd", "a" * 63 + "/", "", "A" * 64):
        altered(s3_place, lambda document: document["table"].update(sha256=table))  # noqa: B023
        for do in (storage.fetch, storage.verify):
            with pytest.raises(CacheFormatError, match=re.escape("some/data/versions/1.json")):
                do("some/data", "1")


def test_a_manifest_that_names_a_table_of_any_size_fills_no_memory(s3_place, opened):
    submit(opened(s3_place))
    altered(s3_place, lambda document: document["table"].update(bytes=2**50))
    with pytest.raises((CacheFormatError, StorageError), match="table"):
        opened(s3_place).fetch("some/data", "1")


@pytest.mark.parametrize(
    ("either_place", "content"),
    [("s3", b""), ("gcs", b"{"), ("s3", b"null"), ("gcs", b"\x00" * 100)],
    indirect=["either_place"],
)
def test_a_damaged_manifest_is_named_and_can_be_built_over(content, either_place, opened):
    storage = opened(either_place)
    submit(storage)
    either_place.open().put("some/data/versions/1.json", content)
    with pytest.raises(CacheFormatError, match=re.escape("some/data/versions/1.json")):
        storage.fetch("some/data", "1")
    submit(storage)
    assert_served(storage)


def test_a_part_that_vanishes_before_publication_is_noticed(s3_place, opened):
    bucket = s3_place.open()

    def source():
        yield from RECORDS.tolist()
        # A part is put and looked at before the next one's receipt is written.
        wait_until(lambda: len(names(bucket, r"/0\d+\.json$")) > 1, "two receipts")
        receipt = read(bucket, min(names(bucket, r"/0\d+\.json$")))
        bucket.delete(f"some/data/parts/{json.loads(receipt or b'')['parts'][0][0]}.mdb")

    storage = opened(s3_place)
    with pytest.raises(StorageError, match="has vanished"):
        submit(storage, records=source)
    assert storage.datasets() == []


# Clocks.


def with_a_clock_that_is_off(skew_s, place, mirror, doing):
    """Do something on a machine whose clock is wrong by so much."""
    right = time.time
    time.time = lambda: right() + skew_s
    storage = place.storage(mirror=mirror)
    if doing == "submit":
        return submit(storage)
    if doing == "delete":
        return storage.delete("some/data", "1")
    if doing == "undelete":
        return storage.undelete("some/data", "1")
    return storage.prune(grace_s=DAY_S).files


@pytest.mark.parametrize(
    ("skew_s", "store"), [(-40 * DAY_S, "s3_place"), (5 * HOUR_S, "s3_place"), (40 * DAY_S, "gcs_place")]
)
def test_what_machines_with_wrong_clocks_prune_is_old_all_the_same(skew_s, store, request, opened, tmp_path):
    place = request.getfixturevalue(store)
    storage = opened(place)

    def elsewhere(doing):
        with Process(with_a_clock_that_is_off, skew_s, place, tmp_path / "mirror", doing) as process:
            return process.result()

    submit(storage, records=RECORDS[:7])
    elsewhere("submit")
    assert_served(storage)
    submit(storage, records=RECORDS[:9])
    elsewhere("delete")
    assert elsewhere("prune") == storage.prune(grace_s=DAY_S).files == ()
    storage.undelete("some/data", "1")
    assert len(storage.fetch("some/data", "1")) == 9  # the last one, whoever threw it away
    elsewhere("undelete")
    assert_served(storage)


# A version that is replaced and pruned.


def test_a_job_that_runs_survives_a_replacement_and_a_prune_within_the_grace(either_place, opened):
    builder, reader = opened(either_place), opened(either_place)
    submit(builder)
    running = reader.fetch("some/data", "1")
    waiting = pickle.dumps(opened(either_place).fetch("some/data", "1"))
    submit(builder, records=RECORDS[:7])
    assert builder.prune().files == ()
    assert np.array_equal(running.gather(range(len(RECORDS))), RECORDS)
    late = pickle.loads(waiting)
    assert np.array_equal(late.gather(range(len(RECORDS))), RECORDS)
    assert len(builder.fetch("some/data", "1")) == 7


def test_after_a_prune_without_grace_a_job_reads_on_or_is_told(either_place, opened):
    builder, reader = opened(either_place), opened(either_place)
    submit(builder)
    running = reader.fetch("some/data", "1")
    waiting = pickle.dumps(running)
    submit(builder, records=RECORDS[:7])
    assert builder.prune(grace_s=0).files
    assert np.array_equal(running.gather(range(len(RECORDS))), RECORDS)
    assert pickle.loads(waiting)[7] == 21  # the mirror has it whole
    shutil.rmtree(reader._backend.catalogue.opener.mirror.location.root)
    with pytest.raises(DatasetNotFoundError, match="fetch it again"):
        pickle.loads(waiting).gather([0])
