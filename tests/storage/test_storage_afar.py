"""Caches of a bucket that are not on this machine, or in part: read by range, the same in every way."""

import errno
import gc
import itertools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import weakref
from concurrent import futures

import numpy as np
import pytest
from inside import PAGE_BYTES, DaemonThreads, Filler, end_all_threads, set_constants
from inside import rows as stored_rows
from processes import in_fork, wait_until
from trees import assert_equal, assert_same_batches

import yogadl
from yogadl.errors import CacheFormatError, SpendingError

COUNT = 500


def record(number):
    random = np.random.default_rng(number)
    return {
        "id": number,
        "image": random.integers(0, 255, (30, 40), np.uint8),
        "tokens": random.integers(0, 9, 7 * (number % 60)).astype(np.int32),
        "name": f"ä{number}" * (number % 5),
        "data": random.bytes((number * 37) % 3000),
        "any": {number} if number % 2 else None,
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A bucket in a folder, with a dataset in some parts."""
    folder = tmp_path_factory.mktemp("bucket")
    storage = yogadl.open_storage(folder)
    storage.submit(
        [record(number) for number in range(COUNT)],
        "set",
        "1",
        build=yogadl.BuildOptions(part_bytes=150_000),
        records=yogadl.RecordOptions(allow_pickle=True),
    )
    assert storage.info("set", "1").parts > 5
    return folder.as_uri()


@pytest.fixture
def here(url):
    """The dataset, read in the folder itself."""
    return fetched(yogadl.open_storage(url.removeprefix("file://")))


def fetched(storage, **more):
    return storage.fetch("set", "1", allow_pickle=True, **more)


AWAY = (
    *("no mirror", "an empty mirror", "a mirror in part", "unmapped"),
    *("verified", "verified in part", "checked"),
)


@pytest.fixture(params=AWAY)
def away(request, url, tmp_path):
    """The same, read by range: all of it, or what a mirror lacks."""
    verify = "block" if "verified" in request.param else None
    if request.param in ("no mirror", "verified", "checked"):
        storage = yogadl.open_storage(url, mirror=None, verify=verify)
        return fetched(storage, check=request.param == "checked")
    options = {"mirror": yogadl.Mirror(tmp_path, fill="never"), "mapped": request.param != "unmapped"}
    options["verify"] = verify
    if request.param != "an empty mirror":
        fetched(yogadl.open_storage(url, mirror=tmp_path))
        for part in sorted(tmp_path.rglob("*.mdb"))[::2]:
            part.unlink()
    return fetched(yogadl.open_storage(url, **options))


def test_records_and_views_are_the_same(here, away):
    assert away.locality().parts_here < away.locality().parts
    chosen = [5, 499, 0, 5, 77, -1]
    assert_equal(away.gather(chosen), here.gather(chosen))
    assert_equal(list(away[3:400:50]), list(here[3:400:50]))
    assert_equal(away.fields("name", "id").gather(chosen), here.fields("name", "id").gather(chosen))
    assert_equal(list(yogadl.concat([away, here[:3]])), list(yogadl.concat([here, here[:3]])))
    assert away.fingerprint == here.fingerprint
    assert away.locality().ranges > 0


# Besides those of tests/together/test_algebra.py, which reads views by range and through mirrors, too.
VIEWS = {
    "shuffled": lambda ref: ref.stream(shuffle=True, shuffle_seed=3).batch(32),
    "in order": lambda ref: ref.stream().batch(7),
    "blocks": lambda ref: ref.stream(shuffle=yogadl.Blocks(records=20, window=4)).batch(16),
    "chunks": lambda ref: ref.chunks("tokens", 50, segments="of").stream(shuffle=True).batch(16),
    "chunks in order": lambda ref: ref.chunks("tokens", 50).stream().batch(16),
    "threads": lambda ref: ref.stream(shuffle=True).batch(16).prefetch(2, threads=3),
    "workers": lambda ref: ref.stream(shuffle=True).batch(16).prefetch(2, workers=2),
    "one after another": lambda ref: ref.stream(shuffle=True, start_offset=450).batch(16).prefetch(4),
}


def by_turns(names, times):
    """Pair each name with so many of the ways to be away, others for each."""
    turns = itertools.product(enumerate(names), range(times))
    return [(AWAY[(2 * number + turn) % len(AWAY)], name) for (number, name), turn in turns]


@pytest.mark.parametrize(("away", "view"), by_turns(VIEWS, 2), indirect=["away"])
def test_streams_are_the_same(here, away, view):
    found, expected = VIEWS[view](away), VIEWS[view](here)
    for _ in range(2):
        assert_same_batches(found, expected)


WAYS = {"alone": {}, "threads": {"threads": 2}, "workers": {"workers": 2, "start_method": "fork"}}


@pytest.mark.parametrize(("away", "name"), by_turns(WAYS, 3), indirect=["away"])
def test_a_stream_goes_on_where_it_was_stopped(here, away, name):
    way = WAYS[name]

    def opened(ref, cursor=None):
        return ref.stream(shuffle=True, cursor=cursor).batch(16).prefetch(2, **way)

    cursor, found = None, []
    for _ in range(4):
        iterator = iter(opened(away, cursor))
        found += list(itertools.islice(iterator, 7))
        cursor = iterator.state_dict()
        iterator.close()
    assert_equal(found, list(itertools.islice(here.stream(shuffle=True).batch(16), 28)))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A bucket with larger records, beside which what is small is little."""
    folder, random = tmp_path_factory.mktemp("wide"), np.random.default_rng(0)
    lengths = random.integers(1000, 9000, 300)
    records = [
        {"id": number, "x": np.zeros(20_000, np.uint8), "data": bytes(3 * length), "tokens": np.zeros(length)}
        for number, length in enumerate(lengths.tolist())
    ]
    yogadl.open_storage(folder).submit(records, "set", "1", build=yogadl.BuildOptions(part_bytes=4 * 10**6))
    return folder.as_uri()


@pytest.mark.parametrize("way", [{}, {"threads": 2}, {"workers": 2}])
def test_each_record_is_asked_for_once_an_epoch(wide, way):
    """However many read it ahead; what is small is asked for by each process once, and kept."""
    ref = yogadl.open_storage(wide, mirror=None).fetch("set", "1")
    loader = ref.stream(shuffle=True).batch(16).prefetch(2, **way)
    list(loader)
    stats = loader.stats()
    processes = way.get("workers", 1)
    small = 3 * ref.locality().parts * processes  # a page or two for each small field of a part
    assert 2.5 * len(ref) < stats.ranges < 3 * len(ref) + 2 * small
    assert stats.range_bytes < ref.locality().bytes + small * 2 * PAGE_BYTES
    assert "MB by range" in str(stats)
    assert (ref.locality().ranges == 0) == ("workers" in way)


ENTRIES = {
    "a shuffle": lambda ref: ref.stream(shuffle=True).batch(8),
    "threads": lambda ref: ref.stream(shuffle=True).batch(8).prefetch(2, threads=3),
    "records": lambda ref: ref.stream(shuffle=True),
    "a view": lambda ref: yogadl.concat([ref[50:], ref[:50]]).stream(shuffle=True).batch(8),
}


@pytest.mark.parametrize("stream", ENTRIES)
def test_an_entry_is_asked_for_once_though_it_is_needed_to_announce_a_value_and_to_read_it(
    wide, monkeypatch, stream
):
    set_constants(monkeypatch, KEPT_BYTES=0, GAP_BYTES=-1)  # neighbours are asked for one by one, too
    ref = yogadl.open_storage(wide, mirror=None).fetch("set", "1").fields("tokens", "data")
    read = ENTRIES[stream](ref)
    planned = ENTRIES["a shuffle"](ref).plan().way("ranges").requests
    assert 4 * len(ref) - 3 < planned <= 4 * len(ref)  # a part of one record has no entries
    for epoch in (1, 2):
        list(read)
        assert ref.locality().ranges == epoch * planned


def test_an_entry_of_a_chunk_is_asked_for_once(wide, monkeypatch):
    set_constants(monkeypatch, KEPT_BYTES=0, GAP_BYTES=-1)
    ref = yogadl.open_storage(wide, mirror=None).fetch("set", "1")
    chunks = ref.chunks("tokens", 20_000)
    ends = np.cumsum([len(tokens) for tokens in ref.fields("tokens").gather(np.arange(len(ref)))["tokens"]])
    # Each chunk is a stretch of each document that it lies in, with an entry.
    stretches = len(set(ends.tolist()) | set(range(20_000, int(ends[-1]), 20_000)))
    assert len(chunks) == ends[-1] // 20_000
    before = ref.locality().ranges
    list(chunks.stream(shuffle=True).batch(4))
    assert stretches < ref.locality().ranges - before <= 2 * stretches


def test_a_field_is_not_read_that_nobody_asks_for(wide):
    ref = yogadl.open_storage(wide, mirror=None).fetch("set", "1")
    list(ref.fields("id").stream(shuffle=True).batch(16))
    assert 0 < ref.locality().ranges <= 2 * ref.locality().parts
    before = ref.locality().range_bytes
    loader = ref.fields("x", "id").stream(shuffle=True).batch(16)
    list(loader)
    assert ref.locality().range_bytes - before < 1.001 * len(ref) * 20_000
    assert loader.stats().range_bytes == ref.locality().range_bytes - before


@pytest.mark.parametrize("shuffle", [True, False])
def test_chunks_are_announced_as_they_are_read(wide, shuffle):
    ref = yogadl.open_storage(wide, mirror=None).fetch("set", "1")
    chunks = ref.chunks("tokens", 500)
    before = ref.locality()
    list(chunks.stream(shuffle=shuffle).batch(16))
    after = ref.locality()
    small = 3 * after.parts * PAGE_BYTES
    assert after.range_bytes - before.range_bytes < 1.01 * len(chunks) * 500 * 8 + small
    assert after.ranges - before.ranges < 2 * len(chunks)


def test_reading_with_checks_finds_damage_afar(tmp_path):
    storage = yogadl.open_storage(tmp_path / "bucket")
    storage.submit({"x": np.arange(100_000)}, "set", "1")
    [part] = (tmp_path / "bucket").rglob("*.mdb")
    url = (tmp_path / "bucket").as_uri()
    ref = yogadl.open_storage(url, mirror=None).fetch("set", "1", check=True)
    np.testing.assert_array_equal(ref.gather([5, 99_999])["x"], [5, 99_999])
    content = bytearray(part.read_bytes())
    content[content.index(np.int64(70_000).tobytes() + np.int64(70_001).tobytes())] ^= 1
    part.write_bytes(content)
    ref = yogadl.open_storage(url, mirror=None).fetch("set", "1", check=True)
    with pytest.raises(CacheFormatError, match=r"field 'x', records .* were changed since"):
        ref.gather([70_000])


def test_entries_are_checked_before_they_are_followed(tmp_path):
    """Also where they are read ahead; and no second copy is promised."""
    storage = yogadl.open_storage(tmp_path / "bucket")
    storage.submit([{"x": np.arange(n % 90)} for n in range(3000)], "set", "1")
    for part in (tmp_path / "bucket").rglob("*.mdb"):
        content = np.fromfile(part, np.uint8)
        content[:: len(content) // 400] ^= 0x55
        content.tofile(part)
    ref = yogadl.open_storage((tmp_path / "bucket").as_uri(), mirror=None).fetch("set", "1", check=True)
    with pytest.raises(CacheFormatError, match=r"field 'x', records .* were changed since") as caught:
        list(ref.stream(shuffle=True).batch(30))
    assert "restore the file" in str(caught.value)


SMALL_BYTES = stored_rows.KEPT_ROW_BYTES
# Columns of 600 records, and how many bytes of them may be kept, if that is not the library's limit.
KEPT = {
    "rows": lambda over: {"small": np.zeros((600, SMALL_BYTES + over), np.uint8), "x": np.arange(600)},
    "rows that have room": lambda over: {"larger": np.zeros((600, 100), np.uint8), "x": np.arange(600)},
    "values": lambda over: {"b": [b"x" * (2 * SMALL_BYTES * (n % 2) + over * (n == 1)) for n in range(600)]},
    "values that have room": lambda over: {"text": [f"{n:>030}" for n in range(600)], "x": np.arange(600)},
}
ROOM_BYTES = {"rows that have room": 600 * (8 + 100), "values that have room": 600 * (8 + 12 + 30)}


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("kind", KEPT)
def test_fields_are_kept_up_to_a_size_and_as_long_as_all_of_them_have_room(tmp_path, monkeypatch, kind, over):
    columns = KEPT[kind](over)
    yogadl.open_storage(tmp_path).submit(columns, "set", "1")
    if kind in ROOM_BYTES:
        set_constants(monkeypatch, KEPT_BYTES=ROOM_BYTES[kind] - over)
    ref = yogadl.open_storage(tmp_path.as_uri(), mirror=None).fetch("set", "1")
    requests = []
    for number in (100, 301, 301, 100):
        assert_equal(
            {name: list(found) for name, found in ref.gather([number]).items()},
            {name: [column[number]] for name, column in columns.items()},
        )
        requests.append(ref.locality().ranges)
    assert (requests[1] == requests[3]) == (over == 0)


@pytest.mark.parametrize("over", [0, 1])
def test_what_is_small_is_brought_at_once(url, tmp_path, monkeypatch, over):
    size_bytes = fetched(yogadl.open_storage(url, mirror=None)).locality().bytes
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=size_bytes - over)
    ref = fetched(yogadl.open_storage(url, mirror=tmp_path))
    assert ref.locality().parts_here == (0 if over else ref.locality().parts)
    assert ref[3]["id"] == 3
    assert bool(ref.locality().ranges) == bool(over)


@pytest.fixture
def large(monkeypatch):
    """Let nothing be small, and no mirror wait for the first batches."""
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0, FIRST_READS=0)


def test_locality_has_the_parts_that_other_processes_have_downloaded(url, tmp_path):
    ref = fetched(yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, fill="never")))
    assert ref[3]
    assert ref.locality().parts_here == 0
    fetched(yogadl.open_storage(url, mirror=tmp_path))
    found = ref.locality()
    assert (found.parts_here, found.bytes_here) == (found.parts, found.bytes)
    next(tmp_path.rglob("*.mdb")).unlink()
    assert ref.locality().parts_here == found.parts - 1


def is_whole(ref):
    return ref.locality().parts_here == ref.locality().parts


def check_filled(ref, filled):
    """Wait for all parts, or fail if one comes."""
    if filled:
        wait_until(lambda: is_whole(ref), "the parts")
    else:
        time.sleep(0.3)
        assert ref.locality().parts_here == 0


def test_a_mirror_is_filled_while_a_stream_reads(url, here, tmp_path, large):
    ref = fetched(yogadl.open_storage(url, mirror=tmp_path))
    assert ref[5]["id"] == 5
    assert ref.locality().parts_here == 0  # for one record nothing is brought
    stream = ref.stream(shuffle=True).batch(16)
    iterator, expected = iter(stream), iter(here.stream(shuffle=True).batch(16))
    for _ in range(5):
        assert_equal(next(iterator), next(expected))
    wait_until(lambda: is_whole(ref), "the parts")
    requests = ref.locality().ranges
    assert_same_batches(iterator, expected)
    assert ref.locality().ranges <= requests + 1
    again = fetched(yogadl.open_storage(url, mirror=tmp_path, offline=True))
    assert is_whole(again)
    assert_equal(again[5], here[5])


@pytest.mark.parametrize(("batches", "filled"), [(3, False), (4, True)])
def test_a_mirror_is_filled_after_the_first_batches(tmp_path, monkeypatch, batches, filled):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0, FIRST_READS_S=3600.0, LOOK_INTERVAL_S=0.01)
    yogadl.open_storage(tmp_path / "bucket").submit({"x": np.ones((2000, 1000))}, "set", "1")
    ref = yogadl.open_storage((tmp_path / "bucket").as_uri(), mirror=tmp_path / "mirror").fetch("set", "1")
    iterator = iter(ref.stream(shuffle=True).batch(256))
    for _ in range(batches):
        next(iterator)
    check_filled(ref, filled)


@pytest.mark.parametrize(("wait_s", "filled"), [(3600.0, False), (0.0, True)])
def test_a_mirror_is_filled_if_a_stream_still_reads_after_some_time(
    url, tmp_path, monkeypatch, wait_s, filled
):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0, FIRST_READS_S=3600.0, FIRST_READS=10**6)
    ref = fetched(yogadl.open_storage(url, mirror=tmp_path))
    iterator = iter(ref.stream(shuffle=True).batch(16))
    next(iterator)
    time.sleep(0.3)
    assert ref.locality().parts_here == 0  # one batch is all that was wanted
    set_constants(monkeypatch, FIRST_READS_S=wait_s)
    for _ in range(10):
        next(iterator)
    check_filled(ref, filled)


@pytest.mark.parametrize(
    ("fill", "shards", "processes", "filled"),
    [
        ("auto", 1, "", True),
        ("auto", 2, "", True),
        ("auto", 3, "", False),
        ("auto", 3, "2", True),
        ("auto", 3, "nonsense", False),
        ("always", 3, "", True),
        ("never", 1, "", False),
    ],
)
def test_a_mirror_is_filled_if_half_is_read_or_if_told(
    url, tmp_path, large, monkeypatch, fill, shards, processes, filled
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    ref = fetched(yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, fill=fill)))
    stream = ref.stream(shuffle=True, num_shards=shards).batch(16)
    next(iter(stream))
    if filled:
        wait_until(lambda: is_whole(ref), "the parts")
    else:
        assert not any(thread.name == "yogadl-fill" for thread in threading.enumerate())
        assert ref.locality().parts_here == 0


def test_what_has_no_room_in_the_mirror_is_read_by_range(url, here, tmp_path, large, caplog):
    size_bytes = here.locality().bytes
    limit = size_bytes // 2
    ref = fetched(yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, limit=limit)))
    assert_same_batches(ref.stream(shuffle=True).batch(16), here.stream(shuffle=True).batch(16))
    wait_until(lambda: "parts are read by range" in caplog.text, "the end of the room")
    assert 0 < ref.locality().parts_here < ref.locality().parts
    assert_same_batches(ref.stream(shuffle=True).batch(16), here.stream(shuffle=True).batch(16))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= limit


def test_a_mirror_without_room_for_the_rest_is_no_error_the_next_time(url, here, tmp_path):
    """Less is missing then than is brought at once."""
    limit = here.locality().bytes // 2
    for way in ({}, {"workers": 2}):
        ref = fetched(yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, limit=limit)))
        assert_same_batches(
            ref.stream(shuffle=True).batch(16).prefetch(2, **way), here.stream(shuffle=True).batch(16)
        )
        assert ref.locality().parts_here < ref.locality().parts
    plan = ref.stream(shuffle=True).batch(16).plan()
    assert plan.chosen == "ranges"
    assert "the mirror's limit is" in plan.why


def test_a_reader_by_range_reserves_no_room_for_what_it_will_not_bring(url, tmp_path):
    ref = fetched(yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, fill="never")))
    limit = 3 * ref.locality().bytes // 2
    whole = yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, limit=limit))
    assert is_whole(fetched(whole))
    assert ref[3]["id"] == 3


def test_parts_that_another_process_brings_are_mapped(url, here, tmp_path, monkeypatch):
    set_constants(monkeypatch, PARTS_AT_ONCE=2, LOOK_INTERVAL_S=0.0)
    ref = fetched(yogadl.open_storage(url, mirror=yogadl.Mirror(tmp_path, fill="never")))
    assert ref[3]["id"] == 3
    in_fork(lambda: fetched(yogadl.open_storage(url, mirror=tmp_path)).locality().parts)
    for number in range(0, COUNT, 3):
        assert_equal(ref[number], here[number])
    assert is_whole(ref)


_BEGIN = """
import os, sys, threading, time, yogadl
from yogadl.storage._files.local_bucket import LocalBucket
from yogadl.storage._remote import mirrored_cache, opener, ranged_cache, requests as _threads
from yogadl.storage._remote.mirrored_cache import MirroredCache
opener.AT_ONCE_BYTES = ranged_cache._FIRST_READS = 0
"""
_READ = """
storage = yogadl.open_storage(sys.argv[1], mirror=yogadl.Mirror(sys.argv[2], fill="always"))
ref = storage.fetch("set", "1", allow_pickle=True)
next(iter(ref.stream(shuffle=True).batch(16)))
"""


def check_ends(*words, **more):
    """Run Python, which must end without a word."""
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, timeout=200, **more)
    assert (done.returncode, done.stderr) == (0, "")


_FILLING = f"""{_BEGIN}
fetch_one, brought = mirrored_cache.fetch_one, []
def slowly(*arguments):
    if len(brought) == 2:
        print("two", flush=True)
        sys.stdin.read()
    brought.append(fetch_one(*arguments))
mirrored_cache.fetch_one = slowly
{_READ}
sys.stdin.read()
"""


def test_who_fills_the_mirror_is_killed_and_another_process_goes_on(url, here, tmp_path, large, monkeypatch):
    set_constants(monkeypatch, LOOK_INTERVAL_S=0.05)
    command = [sys.executable, "-c", _FILLING, url, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"two\n"
        ref = fetched(yogadl.open_storage(url, mirror=tmp_path))
        iterator = iter(ref.stream(shuffle=True).batch(16))
        found = [next(iterator)]
        assert ref.locality().parts_here == 2
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    wait_until(lambda: is_whole(ref), "the parts")
    found += iterator
    assert_equal(found, list(here.stream(shuffle=True).batch(16)))


def test_a_damaged_part_is_an_error_for_all_of_its_records(tmp_path, large, caplog):
    """Found when the mirror is filled: its sha256 is no other's."""
    storage = yogadl.open_storage(tmp_path / "bucket")
    storage.submit(
        {"id": np.arange(1000), "x": np.ones((1000, 3000), np.uint8)},
        "set",
        "1",
        build=yogadl.BuildOptions(part_bytes=10**6),
    )
    ref = yogadl.open_storage((tmp_path / "bucket").as_uri(), mirror=tmp_path / "mirror").fetch("set", "1")
    parts = sorted((tmp_path / "bucket").rglob("*.mdb"))
    content = bytearray(parts[1].read_bytes())
    content[-1] ^= 1
    parts[1].write_bytes(content)
    next(iter(ref.stream().batch(5)))
    wait_until(lambda: "has other bytes than its name says" in caplog.text, "the damage")
    wait_until(lambda: ref.locality().parts_here == len(parts) - 1, "the other parts")
    with pytest.raises(CacheFormatError, match="has other bytes than its name says"):
        list(ref.stream().batch(5))


def test_requests_are_limited_for_a_whole_storage(url):
    storage = yogadl.open_storage(
        url, mirror=None, limits=yogadl.Limits(requests=100, requests_per_s=100_000)
    )
    found = []
    with pytest.raises(SpendingError, match="100 requests were made, which is the limit"):
        found.extend(fetched(storage).stream(shuffle=True).batch(2))
    assert found
    with pytest.raises(SpendingError):
        fetched(storage)[0]


def test_a_pickled_reference_reads_by_range_over_there(url, here):
    ref = fetched(yogadl.open_storage(url, mirror=None))
    assert ref[3]["id"] == 3
    content = pickle.dumps(ref)
    assert_equal(pickle.loads(content)[9], here[9])
    assert in_fork(lambda: int(ref[11]["id"])) == 11
    assert ref[12]["id"] == 12


def test_nothing_is_written_without_a_mirror(url, tmp_path, monkeypatch):
    code = (
        "import sys, yogadl\n"
        "ref = yogadl.open_storage(sys.argv[1], mirror=None).fetch('set', '1', allow_pickle=True)\n"
        "assert sum(len(batch['id']) for batch in ref.stream(shuffle=True).batch(9)) == 500\n"
    )
    own = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    check_ends(code, url, env=os.environ | own)
    assert list(tmp_path.iterdir()) == []


def test_a_storage_without_a_mirror_does_all_else(tmp_path):
    storage = yogadl.open_storage((tmp_path / "bucket").as_uri(), mirror=None)
    storage.submit({"x": np.arange(10)}, "set", "1")
    storage.tag("set", "best", "1")
    assert storage.fetch("set", "best").gather([3])["x"] == 3
    storage.append({"x": np.arange(5)}, "set", "2", base_version="1")
    assert len(storage.fetch("set", "2")) == 15
    assert storage.verify("set", "2").parts == 2
    even = storage.fetch("set", "2").filter(lambda one: one["x"] % 2 == 0)
    assert len(even) == 8
    assert len(storage.fetch("set", "2").filter(lambda one: one["x"] % 2 == 0)) == 8
    storage.delete("set", "2")
    storage.prune()


def test_the_locality_of_what_is_here_or_in_no_cache(here):
    found = here.locality()
    assert (found.parts_here, found.bytes_here, found.ranges) == (found.parts, found.bytes, 0)
    assert yogadl.concat([here, here]).locality() == found
    assert yogadl.from_source([1, 2]).locality().parts == 0


def test_a_dropped_reference_fills_no_more(url, tmp_path, large):
    ref = fetched(yogadl.open_storage(url, mirror=tmp_path))
    next(iter(ref.stream(shuffle=True).batch(16)))
    assert any(thread.name == "yogadl-fill" for thread in threading.enumerate())
    del ref
    gc.collect()
    wait_until(
        lambda: not any(thread.name == "yogadl-fill" for thread in threading.enumerate()),
        "the end of filling",
    )


class OneMayFill:
    """The files of a cache, which one process may download, and none arrives."""

    table = types.SimpleNamespace(fields=[None])

    def __init__(self, folder):
        self.locks = [os.open(folder, os.O_RDONLY)]

    def is_here(self, part):
        return False

    def try_to_fill(self):
        return self.locks.pop() if self.locks else None

    def fill_in(self, *_):
        raise yogadl.errors.StorageError(errno.EIO, "away")


def test_a_forked_child_has_not_its_parents_right_to_fill(tmp_path, monkeypatch):
    set_constants(monkeypatch, FIRST_READS=0)
    filler = Filler(OneMayFill(tmp_path), np.ones(3, bool), print, print)

    def has_right():
        filler.start()
        return filler._lock is not None

    filler.start()
    filler.note_read()
    wait_until(has_right, "the right to fill")
    assert in_fork(has_right) is False
    assert has_right()


def test_in_a_fork_both_sides_read_and_fill(url, here, tmp_path, large, monkeypatch):
    set_constants(monkeypatch, LOOK_INTERVAL_S=0.05)
    ref = fetched(yogadl.open_storage(url, mirror=tmp_path))
    iterator = iter(ref.stream(shuffle=True).batch(16))
    next(iterator)

    def forked():
        assert_same_batches(ref.stream(shuffle=True).batch(16), here.stream(shuffle=True).batch(16))
        wait_until(lambda: is_whole(ref), "the parts")
        return True

    assert in_fork(forked)
    list(iterator)
    wait_until(lambda: is_whole(ref), "the parts")


_FILLING_AT_EXIT = f"""{_BEGIN}
_threads._EXIT_TIMEOUT_S = 1000.0
get = LocalBucket.get
def slowly(self, name, *more, **options):
    if "parts" in name and name.endswith(".mdb"):
        time.sleep(0.3)
    return get(self, name, *more, **options)
LocalBucket.get = slowly
{_READ}
"""


def test_an_interpreter_ends_while_it_fills_the_mirror(url, tmp_path):
    """It waits for requests under way, and for nothing else, however long it might."""
    check_ends(_FILLING_AT_EXIT, url, str(tmp_path))


_FILLING_AFTER_EXIT_BEGAN = f"""{_BEGIN}
fill_in, begun = MirroredCache.fill_in, threading.Event()
def late(self, number, ranges, total, lock):
    found = os.fstat(lock)
    begun.set()
    total.stopped.wait()
    assert os.path.samestat(os.fstat(lock), found)
    return fill_in(self, number, ranges, total, lock)
MirroredCache.fill_in = late
{_READ}
assert begun.wait(100)
"""


def test_the_lock_of_who_fills_the_mirror_stays_open_until_its_threads_have_ended(url, tmp_path):
    """Or they would write to whatever file has its number by then."""
    check_ends(_FILLING_AFTER_EXIT_BEGAN, url, str(tmp_path))


def test_what_waits_for_jobs_that_never_run_wakes_up():
    """Of a pool that ends: some are waited for one by one, some together."""
    threads, gate = DaemonThreads(1, "ends"), threading.Event()
    first = threads.submit(gate.wait)
    others = [threads.submit(int) for _ in range(3)]
    others[0].cancel()
    threads.end(time.monotonic())
    done, _ = futures.wait(others, timeout=30)
    assert done == set(others)
    late = threads.submit(int)
    assert late.cancelled()
    gate.set()
    assert first.result(30)


def test_threads_that_end_while_another_one_starts_all_end(monkeypatch):
    """The exit once waited for a thread that was started after all others had got their end."""
    start, gate = threading.Thread.start, threading.Event()
    threads = DaemonThreads(2, "late")
    ending = threading.Thread(target=threads.end, args=(time.monotonic() + 100,))
    first = threads.submit(gate.wait)

    def late(thread):
        if thread.name == "late":
            ending.start()
            gate.wait(0.2)  # long enough for an end that does not wait for this start
            gate.set()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", late)
    second = threads.submit(int)
    ending.join(30)
    assert not ending.is_alive()
    assert first.result(30)
    assert second.cancelled() or second.result(30) == 0


def test_threads_that_are_made_while_all_others_get_their_end_end_too(monkeypatch):
    """The exit once printed that a set changed while it was iterated over, and waited for no thread."""
    late = []

    class Living(weakref.WeakSet):
        def __iter__(self):
            for threads in super().__iter__():
                if not late:  # as a daemon thread of the user does
                    late.append(DaemonThreads(1, "late"))
                yield threads

    set_constants(monkeypatch, LIVING_THREADS=Living())
    early = [DaemonThreads(1, "early") for _ in range(3)]
    end_all_threads()
    assert [threads.ended.is_set() for threads in (*early, *late)] == [True] * 4


def test_as_many_threads_do_as_there_may_be(monkeypatch):
    start, started = threading.Thread.start, []

    def limited(thread):
        if thread.name == "few" and len(started) == most:
            raise RuntimeError("can't start new thread")
        if thread.name == "few":
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    most = 2
    threads = DaemonThreads(9, "few")
    assert [one.result(30) for one in [threads.submit(int, number) for number in range(20)]] == list(
        range(20)
    )
    threads.end(time.monotonic() + 30)
    assert [thread.is_alive() for thread in started] == [False, False]
    most = 2
    with pytest.raises(RuntimeError, match="can't start new thread"):
        DaemonThreads(9, "few").submit(int)


def test_a_cache_that_is_joined_with_itself_is_counted_once(url):
    ref = fetched(yogadl.open_storage(url, mirror=None))
    joined = yogadl.concat([ref[:20], ref[40:]])
    list(joined.stream(shuffle=True).batch(8))
    assert joined.locality() == ref.locality()
    assert ref.locality().ranges > 0


def test_a_mirror_that_was_replaced_by_a_file_is_filled_no_further(url, here, tmp_path, caplog, monkeypatch):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    ref = fetched(yogadl.open_storage(url, mirror=tmp_path / "mirror"))
    shutil.rmtree(tmp_path / "mirror")
    (tmp_path / "mirror").write_bytes(b"")
    assert_equal(list(ref.stream(shuffle=True).batch(50)), list(here.stream(shuffle=True).batch(50)))
    wait_until(lambda: "filled no further" in caplog.text, "the filler has said so")
