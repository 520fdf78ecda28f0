"""Streams that read by range when store, network or people fail: the right data, or one clear error."""

import gc
import itertools
import threading
import time

import numpy as np
import pytest
from inside import Ranges, ReplacedError, RetryPolicy, set_constants
from places import parts_of, swap
from processes import in_fork, wait_until
from store_proxy import cuts, proxy_before, refuses, resets, stalls
from turns import rest_of

import yogadl
from yogadl.errors import CacheFormatError, StorageError

COUNT = 150
BOUND_S = 60
BLOCKS = yogadl.Blocks(records=5, window=5, lanes=3)
ROOM_BYTES = 1_500_000  # not for all of the cache: its parts would come to the mirror, not its blocks
COLUMNS = {"id": np.arange(COUNT), "x": np.random.default_rng(0).integers(0, 255, (COUNT, 10_000), np.uint8)}
PASSING = {
    "reset": resets(),
    "reset in the body": resets(2000),
    "cut": cuts(2000),
    "stall": stalls(),
    "stall in the body": stalls(2000),
    "500": refuses(500, "InternalError"),
    "503": refuses(503, "SlowDown"),
    "429": refuses(429, "TooManyRequests"),
}


def of_a_part(request):
    return request.method == "GET" and ".mdb" in request.name and "Range" in request.headers


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch):
    """Bring no cache to the mirror at once."""
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)


def opened(place, total_s=60.0, **options):
    """Build a dataset, and open it without a mirror, as another machine would."""
    place.storage().submit(COLUMNS, "set", "1", build=yogadl.BuildOptions(part_bytes=400_000))
    return again(place, total_s, **options)


def again(place, total_s=60.0, **options):
    """Open it in another process's stead."""
    patience = RetryPolicy(1.0, total_s)
    storage = place.storage(**{"mirror": None, "patience": patience, **options})
    return storage.fetch("set", "1")


def drained(ref, shuffle=True, **way):
    """Read an epoch, and compare all of it."""
    seen = []
    for batch in ref.stream(shuffle=shuffle).batch(16).prefetch(2, **way):
        np.testing.assert_array_equal(batch["x"], COLUMNS["x"][batch["id"]])
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(COUNT))


HELD = {"shuffle": BLOCKS, "every": 3}  # in a mirror


@pytest.mark.parametrize(
    ("broken", "name", "way"),
    [
        ("s3", "reset", {}), ("gcs", "cut", {}), ("s3", "stall in the body", {}), ("gcs", "503", {}),
        ("gcs", "cut", {"threads": 2}), ("s3", "cut", {"workers": 2}),
        ("s3", "cut", HELD), ("gcs", "cut", HELD | {"workers": 2}),
        ("s3", "cut", {"verify": "block", "every": 3}), ("gcs", "cut", {"verify": "block", "every": 3}),
    ],
    indirect=["broken"],
    ids=str,
)  # fmt: skip
def test_a_failure_now_and_then_is_not_seen(broken, tmp_path, name, way):
    place, proxy = broken
    held = {"mirror": yogadl.Mirror(tmp_path, limit=ROOM_BYTES)} if "shuffle" in way else {}
    ref = opened(place, verify=way.get("verify"), **held)
    every = way.get("every", 11)
    proxy.breaks(lambda request: of_a_part(request) and len(proxy.requests) % every == 0, PASSING[name], 20)
    drained(ref, **{word: value for word, value in way.items() if word not in ("every", "verify")})
    assert proxy.rules[0].times < 20


@pytest.mark.parametrize(
    ("broken", "name", "shuffle"),
    [("s3", "reset", True), ("gcs", "reset", BLOCKS), ("s3", "stall", BLOCKS), ("gcs", "503", True)],
    indirect=["broken"],
)
def test_a_store_that_is_gone_is_one_error_and_the_next_try_goes_on(
    broken, tmp_path, monkeypatch, name, shuffle
):
    # Two windows are brought ahead: were they the epoch, all of it might be here before the store is gone.
    set_constants(monkeypatch, WINDOW_BYTES=1)
    place, proxy = broken
    held = {} if shuffle is True else {"mirror": yogadl.Mirror(tmp_path, limit=ROOM_BYTES)}
    ref = opened(place, total_s=2.0, **held)
    assert ref.locality().bytes > ROOM_BYTES
    iterator = iter(ref.stream(shuffle=shuffle).batch(16))
    seen = [next(iterator)]
    proxy.breaks(of_a_part, PASSING[name])
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"can't read .*tried \d+ times"):
        seen.extend(iterator)
    assert time.monotonic() - began < BOUND_S
    proxy.rules.clear()
    seen += rest_of(iterator)
    found = np.concatenate([batch["id"] for batch in seen]).tolist()
    assert found == ref.stream(shuffle=shuffle).indices(0).tolist()
    for batch in seen:
        np.testing.assert_array_equal(batch["x"], COLUMNS["x"][batch["id"]])


@pytest.mark.parametrize(
    ("broken", "way"),
    [("s3", None), ("gcs", {}), ("gcs", {"threads": 2}), ("s3", {"workers": 2})],
    indirect=["broken"],
    ids=str,
)
def test_an_error_is_told_once_and_what_failed_ahead_is_asked_for_anew(broken, way):
    place, proxy = broken
    stream = opened(place).stream(shuffle=True)
    batches = stream.map(dict).batch(16)  # without a function, many small batches are one read
    iterator = iter(batches if way is None else batches.prefetch(2, **way))
    seen = [next(iterator)]
    is_google = place.url.startswith("gs:")
    proxy.breaks(of_a_part, refuses(403, "Forbidden") if is_google else refuses(400, "ExpiredToken"))
    with pytest.raises(StorageError, match=r"credentials (are not allowed to|have expired)"):
        seen.extend(iterator)
    nothing_is_on_its_way(proxy)
    proxy.rules.clear()  # renewed
    seen.extend(iterator)
    assert np.concatenate([batch["id"] for batch in seen]).tolist() == stream.indices(0).tolist()


def nothing_is_on_its_way(proxy):
    """Wait until each range that was asked for ahead has come, or failed."""
    # One that another test interrupted while it was made has nothing on its way.
    here = [found for found in gc.get_objects() if isinstance(found, Ranges) and hasattr(found, "_known")]
    wait_until(
        lambda: (
            proxy.answering == 0
            and all(one.is_done for ranges in here for one in list(ranges._known().rows.values()))
        ),
        "that nothing is on its way",
    )


def test_a_store_that_comes_back_is_waited_for(broken):
    place, proxy = broken
    ref = opened(place)
    iterator = iter(ref.stream(shuffle=True).batch(16))
    seen = [next(iterator)]
    proxy.breaks(of_a_part, resets())
    timer = threading.Timer(2.0, proxy.rules.clear)
    timer.start()
    seen += list(iterator)
    found = np.concatenate([batch["id"] for batch in seen]).tolist()
    assert found == ref.stream(shuffle=True).indices(0).tolist()


def test_a_part_that_is_replaced_meanwhile_is_one_error(s3_place):
    """The server of Google's that we have ignores which generation is asked for."""
    ref = opened(s3_place)
    next(iter(ref.stream(shuffle=True).batch(16)))
    swap(s3_place)
    with pytest.raises(ReplacedError, match="replaced or deleted while it was read"):
        drained(ref)


def test_a_version_that_is_deleted_and_pruned_is_one_error(either_place):
    ref = opened(either_place)
    iterator = iter(ref.stream(shuffle=True).batch(16))
    next(iterator)
    for part in parts_of(either_place):
        either_place.open().delete(part.name)
    with pytest.raises(CacheFormatError, match="the version was removed and pruned"):
        drained(ref)


def test_a_part_that_is_cut_short_is_one_error(either_place):
    opened(either_place)
    bucket = either_place.open()
    for name in [part.name for part in parts_of(either_place)]:
        with bucket.get(name) as body:
            assert body is not None
            content = b"".join(bytes(chunk) for chunk in body.chunks)
        bucket.put(name, content[:-4096])
    with pytest.raises(CacheFormatError, match="truncated or altered there"):
        drained(again(either_place))


@pytest.mark.parametrize(
    ("any_place", "way"),
    [("gcs", {}), ("ministack", {"threads": 2}), ("moto", {"workers": 2})],
    indirect=["any_place"],
    ids=str,
)
def test_an_object_with_other_bytes_is_one_error_where_they_are_compared(any_place, way):
    """Of the same size."""
    drained(opened(any_place, verify="block"), **way)
    bucket = any_place.open()
    damaged = COLUMNS["x"][100]
    for name in [part.name for part in parts_of(any_place)]:
        with bucket.get(name) as body:
            assert body is not None
            content = bytearray(b"".join(bytes(chunk) for chunk in body.chunks))
        place = content.find(damaged.tobytes())
        if place >= 0:
            content[place + 9999] ^= 1
            bucket.put(name, bytes(content))
    ref = again(any_place, verify="block")
    with pytest.raises(
        CacheFormatError, match=r"field 'x', records \d+ to \d+: the bytes in part \w+.mdb were"
    ):
        drained(ref, **way)
    assert int(ref[0]["id"]) == 0
    with pytest.raises(CacheFormatError, match="field 'x'"):
        ref[100]


def test_a_part_swapped_after_the_fetch_is_one_error_where_bytes_are_compared(either_place):
    ref = opened(either_place, verify="block")
    swap(either_place)
    with pytest.raises((ReplacedError, CacheFormatError), match="the bytes in part"):
        drained(ref)


def test_a_mirror_is_filled_over_a_network_that_fails(broken, tmp_path):
    place, proxy = broken
    ref = opened(place, mirror=yogadl.Mirror(tmp_path, fill="always"))
    proxy.breaks(lambda request: of_a_part(request) and len(proxy.requests) % 3 == 0, cuts(2000), times=20)
    for _ in itertools.count():
        drained(ref)
        if ref.locality().parts_here == ref.locality().parts:
            break
    drained(ref)
    assert proxy.rules[0].times < 20


def test_a_fork_reads_on_both_sides(either_place):
    ref = opened(either_place)
    iterator = iter(ref.stream(shuffle=True).batch(16))
    next(iterator)

    def forked():
        drained(ref)
        return True

    assert in_fork(forked)
    list(iterator)
    drained(ref)


def test_streams_are_right_from_each_store(any_place):
    ref = opened(any_place)
    drained(ref)
    drained(ref, threads=2)
    drained(ref, workers=2)
    with proxy_before(any_place.options["endpoint_url"]) as proxy:
        through = again(any_place.through(proxy.url))
        assert int(through[7]["id"]) == 7
        wait_until(lambda: any(map(of_a_part, proxy.requests)), "a request for a range")
        assert all("Range" in request.headers for request in proxy.requests if of_a_part(request))
