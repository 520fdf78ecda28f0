"""A stream of `Blocks` over a cache that is far away: whole blocks come ahead, each once, and are held."""

import contextlib
import errno
import gc
import itertools
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest
from inside import HELD_GAP_BYTES, MirrorLocation, _held, evict_for, is_free, set_constants
from processes import in_fork, wait_until
from trees import assert_same_batches

import yogadl
from yogadl.errors import SpendingError, StorageError

COUNT = 3000
ORDER = yogadl.Blocks(records=40, window=5, lanes=4)  # windows of 800 records
ROW_BYTES = 1500  # of an image: what is smaller is kept in pages


def record(number):
    random = np.random.default_rng(number)
    return {
        "id": number,
        "image": random.integers(0, 255, ROW_BYTES, np.uint8),
        "tokens": random.integers(0, 9, number % 700).astype(np.int32),
        "name": f"ä{number}" * (number % 5),
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A bucket in a folder, with a dataset in some parts."""
    folder = tmp_path_factory.mktemp("bucket")
    storage = yogadl.open_storage(folder)
    storage.submit(
        (record(number) for number in range(COUNT)), "set", "1", build=yogadl.BuildOptions(part_bytes=750_000)
    )
    assert storage.info("set", "1").parts > 8
    return folder.as_uri()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let what is small here be read as if it were large: in windows of its own, a block at a time."""
    set_constants(monkeypatch, WINDOW_BYTES=1, BLOCK_AHEAD_REQUEST_BYTES=1)
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0, FIRST_READS=0)


def fetched(url, *fields, **options):
    ref = yogadl.open_storage(url, **({"mirror": None} | options)).fetch("set", "1")
    return ref.fields(*fields) if fields else ref


def here(url):
    return yogadl.open_storage(url.removeprefix("file://")).fetch("set", "1")


WHERE = {
    "memory": lambda folder: {"mirror": None},
    "a mirror": lambda folder: {"mirror": yogadl.Mirror(folder, limit=7_000_000)},
    "a mirror of one window": lambda folder: {"mirror": yogadl.Mirror(folder, limit=3_200_000)},
    "a mirror of less than a block": lambda folder: {"mirror": yogadl.Mirror(folder, limit=60_000)},
    "never filled": lambda folder: {"mirror": yogadl.Mirror(folder, fill="never")},
}


@pytest.fixture(params=WHERE)
def options(request, tmp_path):
    return WHERE[request.param](tmp_path / "mirror")


def thirds(ref, weights=(0.5, 0.3, 0.2), **options):
    """Return a mix of shares of the records that are as large as these weights, or of others."""
    parents = {"a": ref[:1500], "b": ref[1500:2400], "c": ref[2400:]}
    return yogadl.mix(
        {name: (part, weight) for (name, part), weight in zip(parents.items(), weights, strict=True)},
        **options,
    )


def doubled(one):
    return {"both": np.tile(one["tokens"][:90], 2)}


STREAMS = {
    "plain": lambda ref: ref.stream(shuffle=ORDER, shuffle_seed=3).batch(32),
    "records": lambda ref: ref.stream(shuffle=ORDER, shuffle_seed=3),
    "a shard": lambda ref: ref.stream(shuffle=ORDER, shard_rank=1, num_shards=4).batch(16),
    "a shard of lanes that are shared": lambda ref: ref.stream(
        shuffle=ORDER, shard_rank=1, num_shards=3
    ).batch(16),
    "padded": lambda ref: ref.stream(
        shuffle=ORDER, shard_rank=3, num_shards=4, pad_shard_remainder=True
    ).batch(7),
    "from the middle": lambda ref: ref.stream(1237, shuffle=ORDER).batch(32),
    "with ranges left out": lambda ref: (
        ref.stream(shuffle=ORDER).skip_ranges([(100, 1300), (2000, 2001)]).batch(32)
    ),
    "always the same": lambda ref: ref.stream(shuffle=ORDER, skip_shuffle_at_epoch_end=True).batch(32),
    "tiny windows": lambda ref: ref.stream(shuffle=yogadl.Blocks(3, 2, 1)).batch(50),
    "blocks of few records": lambda ref: ref.stream(shuffle=yogadl.Blocks(4, 5, 4)).batch(50),
    "one window": lambda ref: ref.stream(shuffle=yogadl.Blocks(40, 30, 4)).batch(50),
    "no window is full": lambda ref: ref.stream(shuffle=yogadl.Blocks(400, 300, 4)).batch(50),
    "a slice": lambda ref: ref[17:2017].stream(shuffle=ORDER).batch(32),
    "every third": lambda ref: ref[::3].stream(shuffle=ORDER).batch(32),
    "selected": lambda ref: ref.select(np.arange(COUNT)[::-1]).stream(shuffle=ORDER).batch(32),
    "split": lambda ref: ref.split(0.5, seed=1)[0].stream(shuffle=ORDER).batch(32),
    "joined": lambda ref: yogadl.concat([ref[:1250], ref[1500:]]).stream(shuffle=ORDER).batch(32),
    "mixed": lambda ref: (
        yogadl.mix({"a": (ref[:1500], 0.6), "b": (ref[1500:], 0.4)}).stream(shuffle=ORDER).batch(32)
    ),
    "a mix whose parents end": lambda ref: thirds(ref, (0.2, 0.7, 0.1)).stream(shuffle=ORDER).batch(32),
    "a mix whose parents begin again": lambda ref: (
        thirds(ref, (0.2, 0.7, 0.1), at_end="repeat").stream(shuffle=ORDER).batch(32)
    ),
    "a mix of tiny parents that begin again": lambda ref: (
        yogadl.mix({"a": (ref[:2500], 0.5), "b": (ref[:3], 0.5)}, at_end="repeat")
        .stream(shuffle=ORDER)
        .batch(32)
    ),
    "a mix of one": lambda ref: yogadl.mix({"a": (ref, 1)}).stream(shuffle=ORDER).batch(32),
    "a mix of views": lambda ref: (
        yogadl.mix({"a": (ref[::2], 2), "b": (yogadl.concat([ref[:900], ref[2000:]]), 1)})
        .fields("id", "tokens")
        .map(lambda one: {"id": one["id"], "count": len(one["tokens"])})
        .stream(shuffle=ORDER)
        .batch(32)
    ),
    "a mix of chunks": lambda ref: (
        yogadl.mix({"a": (ref[:1800].chunks("tokens", 64), 2), "b": (ref[1800:].chunks("tokens", 64), 1)})
        .stream(shuffle=ORDER)
        .batch(32)
    ),
    "a shard of a mix": lambda ref: thirds(ref).stream(shuffle=ORDER, shard_rank=1, num_shards=2).batch(16),
    "a mix with ranges left out": lambda ref: (
        thirds(ref).stream(shuffle=ORDER).skip_ranges([(100, 1300), (2000, 2001)]).batch(32)
    ),
    "a mix from the middle": lambda ref: thirds(ref).stream(1237, shuffle=ORDER).batch(32),
    "a mix always the same": lambda ref: (
        thirds(ref).stream(shuffle=ORDER, skip_shuffle_at_epoch_end=True).batch(32)
    ),
    "a mix in threads": lambda ref: thirds(ref).stream(shuffle=ORDER).batch(16).prefetch(4, threads=3),
    "a mix in forked workers": lambda ref: (
        thirds(ref).stream(shuffle=ORDER).batch(16).prefetch(4, workers=2, start_method="fork")
    ),
    "chunks": lambda ref: ref.chunks("tokens", 64, segments="segments").stream(shuffle=ORDER).batch(32),
    "chunks longer than documents": lambda ref: (
        ref.chunks("tokens", 1500, drop_remainder=False, pad=0)
        .stream(shuffle=yogadl.Blocks(5, 4, 4))
        .batch(8)
    ),
    "chunks of a function": lambda ref: (
        ref.map(doubled, spec={"both": yogadl.Leaf("int32", (None,))})
        .chunks("both", 64)
        .stream(shuffle=ORDER)
        .batch(32)
    ),
    "chunks of values of one size": lambda ref: (
        ref.fields("image").chunks("image", 4000).stream(shuffle=ORDER).batch(32)
    ),
    "chunks in workers": lambda ref: (
        ref.chunks("tokens", 64).stream(shuffle=ORDER).batch(16).prefetch(4, workers=2, start_method="fork")
    ),
    "windows": lambda ref: (
        ref.windows({"image": [-1, 0], "id": range(5)}, None).stream(shuffle=ORDER).batch(32)
    ),
    "windows of episodes that are scattered": lambda ref: (
        ref.map(lambda one: one | {"episode": one["id"] % 3})
        .windows({"image": [0, 1]}, "episode")
        .stream(shuffle=yogadl.Blocks(40, 5, 2))
        .batch(32)
    ),
    "mapped": lambda ref: ref.map(lambda one: {"sum": one["image"].sum()}).stream(shuffle=ORDER).batch(32),
    "threads": lambda ref: ref.stream(shuffle=ORDER).batch(16).prefetch(4, threads=3),
    "workers": lambda ref: ref.stream(shuffle=ORDER).batch(16).prefetch(4, workers=2),
    # They have the constants as they are here.
    "forked workers": lambda ref: (
        ref.stream(shuffle=ORDER).batch(16).prefetch(4, workers=2, start_method="fork")
    ),
}


def begun(batches, count):
    """Return an iterator, and so many batches that it has given."""
    reader = iter(batches)
    return reader, list(itertools.islice(reader, count))


def epochs(stream):
    """Yield all that a stream has in two epochs."""
    return itertools.chain(stream, stream)


TWICE = ("plain", "always the same", "a shard of lanes that are shared", "workers", "chunks", "windows")

# Each stream in memory or in a mirror, by turns; in both, what has shards, threads or processes.
PLACES = [(("memory", "a mirror")[number % 2], name) for number, name in enumerate(STREAMS)]
PLACES += [
    ("a mirror" if where == "memory" else "memory", name)
    for where, name in PLACES
    if name in ("from the middle", "tiny windows", "joined", "threads")
]
PLACES += [(where, "plain") for where in WHERE if where != "memory"]


@pytest.mark.parametrize(("where", "name"), PLACES)
def test_the_records_are_those_of_a_local_cache(url, tmp_path, where, name):
    ref = fetched(url, **WHERE[where](tmp_path / "mirror"))
    found, expected = STREAMS[name](ref), STREAMS[name](here(url))
    if name in TWICE or "mix" in name:
        found, expected = itertools.chain(found, found), itertools.chain(expected, expected)  # two epochs
    assert_same_batches(found, expected)


@pytest.fixture
def small_reads(monkeypatch):
    """Let a read be smaller than a window here, as elsewhere."""
    set_constants(monkeypatch, ITEMS_MOST_BYTES=8 * ROW_BYTES, WORKERS_CHUNK_BYTES=8 * ROW_BYTES)


def made(ref, read):
    """Read, and return how many requests that took, and how many bytes came."""
    before = ref.locality()
    list(read)
    after = ref.locality()
    return after.ranges - before.ranges, after.range_bytes - before.range_bytes


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("where", ["memory", "a mirror"])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_each_block_comes_once_to_one_shard(url, tmp_path, where, shards):
    requests = size_bytes = 0
    for rank in range(shards):
        ref = fetched(url, "image", **WHERE[where](tmp_path / str(rank)))
        stream = ref.stream(shuffle=yogadl.Blocks(50, 5, 4), shard_rank=rank, num_shards=shards)
        found = made(ref, stream.batch(8))
        requests, size_bytes = requests + found[0], size_bytes + found[1]
    first_rows = 16 * shards  # read record by record, since they are waited for
    assert requests <= COUNT // 50 + first_rows + 60  # a block may lie in two of the format's
    assert COUNT * ROW_BYTES <= size_bytes <= (COUNT + first_rows) * ROW_BYTES * 1.02


def test_of_varying_values_whole_blocks_come_as_well(url, monkeypatch):
    set_constants(monkeypatch, KEPT_BYTES=0)
    ref = fetched(url, "tokens")
    requests, size_bytes = made(ref, ref.stream(shuffle=ORDER).batch(8))
    assert requests <= 2 * COUNT // 40 + 2 * 2 * 16 + 40  # entries and values
    assert size_bytes <= 1.05 * sum(4 * (number % 700) + 12 for number in range(COUNT))


def test_blocks_of_which_most_is_left_out_do_not_come(url):
    left_out = [(first + 50, min(first + 800, COUNT)) for first in range(0, COUNT, 800)]
    ref = fetched(url, "image")
    _, size_bytes = made(ref, ref.stream(shuffle=ORDER).skip_ranges(left_out).batch(8))
    assert size_bytes <= 1.1 * 4 * 50 * ROW_BYTES


def test_records_with_a_few_gaps_come_in_blocks_as_well(url):
    ref = fetched(url, "image").select([*range(10), *range(20, COUNT)])
    list(ref.stream(shuffle=ORDER).batch(8))
    assert ref.locality().ranges <= 3 * COUNT // 40


@pytest.mark.usefixtures("small_reads")
def test_workers_of_a_mirror_bring_each_block_once(url, tmp_path):
    ref = fetched(url, "image", mirror=yogadl.Mirror(tmp_path, limit=7_000_000))
    batches = ref.stream(shuffle=yogadl.Blocks(40, 8, 5)).batch(8)
    loader = batches.prefetch(4, workers=2, start_method="fork")
    list(loader)
    found = loader.stats()
    assert found.range_bytes <= 1.1 * COUNT * ROW_BYTES
    assert found.ranges <= 3 * COUNT // 40


def test_workers_without_a_mirror_read_records(url):
    """Each would bring every block for itself."""
    order = yogadl.Blocks(100, 10, 3)
    ref = fetched(url, "image")
    loader = ref.stream(shuffle=order).batch(8).prefetch(4, workers=2)
    list(loader)
    assert loader.stats().ranges > 10 * COUNT // 100


def test_who_reads_here_and_there_brings_no_blocks(url):
    ref = fetched(url, "image")
    loader = ref.stream(shuffle=ORDER).batch(8)
    for step in (250, 3, 350, 90):
        loader.batch_at(step)
    assert ref.locality().range_bytes <= 4 * 20 * ROW_BYTES * 2


def test_two_readers_of_one_stream_are_far_apart(url, options):
    expected = list(epochs(STREAMS["plain"](here(url))))
    loader = STREAMS["plain"](fetched(url, **options))
    one, other = iter(loader), iter(loader)
    half = len(expected) // 2
    ours = [next(one) for _ in range(half // 2)]
    theirs = []
    for batch in other:
        theirs.append(batch)
        ours += itertools.islice(one, 1)
    assert_same_batches(ours + list(one), expected[:half])
    assert_same_batches(theirs, expected[half:])


@pytest.mark.parametrize("options", ["memory", "a mirror", "a mirror of one window"], indirect=True)
def test_a_stream_goes_on_from_a_cursor_within_a_window(url, options):
    whole = list(STREAMS["plain"](here(url)))
    loader = STREAMS["plain"](fetched(url, **options))
    reader, first = begun(loader, 37)
    state = pickle.loads(pickle.dumps(reader.state_dict()))
    again = STREAMS["plain"](fetched(url, **options))
    again.load_state_dict(state)
    assert_same_batches(first + list(again), whole)


@pytest.mark.parametrize("options", ["memory", "a mirror", "never filled"], indirect=True)
def test_a_forked_child_goes_on_by_itself(url, options):
    expected = list(STREAMS["plain"](here(url)))
    reader, first = begun(STREAMS["plain"](fetched(url, **options)), 40)

    def rest():
        assert_same_batches(first + list(reader), expected)
        return True

    assert in_fork(rest)
    assert_same_batches(first + list(reader), expected)


@pytest.mark.parametrize("is_enough", [True, False])
def test_memory_has_so_much(url, tmp_path, monkeypatch, is_enough):
    ref = fetched(url, "image", mirror=yogadl.Mirror(tmp_path, limit=100_000))
    stream = ref.stream(shuffle=ORDER)
    set_constants(monkeypatch, HELD_MOST_IN_MEMORY_BYTES=stream.run.block_ahead.held_bytes - (not is_enough))
    set_constants(monkeypatch, RANGED_CACHE_MOST_IN_MEMORY_BYTES=_held.MOST_IN_MEMORY_BYTES)
    plan = stream.plan()
    assert plan.chosen == ("blocks" if is_enough else "ranges")
    assert is_enough or "no room for two windows of blocks, 2.4 MB" in plan.why
    requests, _ = made(ref, stream.batch(8))
    assert (requests < COUNT // 5) == is_enough


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("first", [0, 1])
def test_iterators_side_by_side_hold_blocks_each(url, first):
    ref = fetched(url, "image")
    loader = ref.stream(shuffle=yogadl.Blocks(40, 10, 5)).batch(8)
    readers = [iter(loader), iter(loader)]
    for _ in range(100 * first):
        next(readers[0])
    while sum(next(reader, None) is not None for reader in readers):
        pass
    assert ref.locality().ranges < COUNT // 4


@pytest.mark.parametrize(("between", "is_one"), [(HELD_GAP_BYTES, True), (HELD_GAP_BYTES + 1, False)])
def test_a_block_in_two_of_the_formats_is_one_request(url, between, is_one):
    ranges = fetched(url)._records.open()[1].parts.away._ranges
    held = _held.BlockStore(ranges, None).window("w")
    parts, lengths = np.zeros(2, np.int64), np.full(2, 100)
    held.add(parts, np.array([0, 100 + between]), lengths)
    found = ranges.read(parts, np.array([0, 100 + between]), lengths, keeps_pages=False)
    assert [len(content) for content in found] == [100, 100]
    assert ranges.received[0] == (1 if is_one else 2)


@pytest.mark.parametrize(("least", "is_one"), [(10 * COUNT * ROW_BYTES, True), (1, False)])
def test_small_windows_are_taken_together(url, monkeypatch, least, is_one):
    set_constants(monkeypatch, WINDOW_BYTES=least)
    blocks = fetched(url, "image").stream(shuffle=yogadl.Blocks(4, 2, 2)).run.block_ahead
    assert blocks.has_stores(is_shared=False)
    assert (blocks.most_rows > 100) == is_one


@pytest.mark.parametrize(("together", "coming"), [(1, 64 * 2**20), (4 * 2**20, 1), (4 * 2**20, 64 * 2**20)])
def test_blocks_come_in_any_number_at_a_time(url, monkeypatch, together, coming):
    set_constants(monkeypatch, BLOCK_AHEAD_REQUEST_BYTES=together, COMING_BYTES=coming)
    assert_same_batches(epochs(STREAMS["plain"](fetched(url))), epochs(STREAMS["plain"](here(url))))


def block_folders(mirror):
    return [folder for folder in (mirror / "blocks").glob("*") if folder.is_dir()]


def block_names(mirror):
    return [
        path
        for folder in block_folders(mirror)
        for path in folder.iterdir()
        if path.suffix not in (".lock", ".tmp") and path.name != "lock"
    ]


def block_bytes(mirror):
    with contextlib.suppress(FileNotFoundError):  # some are just being renamed
        return sum(path.stat().st_size for path in block_names(mirror))
    return 0


def test_nothing_is_left_of_a_stream(url, tmp_path):
    ref = fetched(url, mirror=yogadl.Mirror(tmp_path, limit=7_000_000))
    reader, _ = begun(STREAMS["plain"](ref), 40)
    assert block_names(tmp_path)
    del reader, ref
    wait_until(lambda: not block_names(tmp_path), "the files are gone")


READS = """
import sys, yogadl
from yogadl._stream import block_ahead
from yogadl.storage._remote import opener as _remote_opening
block_ahead._WINDOW_BYTES = 1
_remote_opening.AT_ONCE_BYTES = 0
ref = yogadl.open_storage(sys.argv[1], mirror=yogadl.Mirror(sys.argv[2], limit=7_000_000)).fetch("set", "1")
order = yogadl.Blocks(records=40, window=5, lanes=4)
for number, batch in enumerate(ref.stream(shuffle=order, shuffle_seed=3).batch(32)):
    if number == 40:
        print("there", flush=True)
        sys.stdin.readline()
"""


def test_what_a_killed_process_leaves_makes_room_and_is_not_trusted(url, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", READS, url, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGKILL)
    left = block_names(tmp_path)
    assert left
    for path in left:  # as if the machine had gone down, too
        path.write_bytes(bytes(path.stat().st_size))
    options = {"mirror": yogadl.Mirror(tmp_path, limit=7_000_000)}
    assert_same_batches(
        epochs(STREAMS["plain"](fetched(url, **options))), epochs(STREAMS["plain"](here(url)))
    )
    assert not set(left) & set(block_names(tmp_path))


def test_the_room_of_a_stream_is_reserved_as_long_as_it_lives(url, tmp_path):
    ref = fetched(url, mirror=yogadl.Mirror(tmp_path, limit=7_000_000))
    reader, _ = begun(ref.stream(shuffle=ORDER).batch(32), 5)
    location = MirrorLocation(tmp_path)
    with pytest.raises(StorageError, match="does not fit"):
        evict_for(location, {"another": 5_000_000}, location.limit_bytes(), "another")
    assert block_folders(tmp_path)
    [lock] = [folder / "lock" for folder in block_folders(tmp_path)]
    del reader, ref
    wait_until(lambda: gc.collect() >= 0 and is_free(lock), "the room is free")  # some are on their way
    evict_for(location, {"another": 5_000_000}, location.limit_bytes(), "another")
    assert not block_folders(tmp_path)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("stops", [False, True])
def test_each_epoch_takes_the_room_of_the_one_before(url, tmp_path, stops):
    order = yogadl.Blocks(40, 8, 5)  # two windows an epoch
    ref = fetched(url, "image", mirror=yogadl.Mirror(tmp_path, limit=5_000_000))
    loader = ref.stream(shuffle=order).batch(8)
    for _ in range(3):
        before = ref.locality().ranges
        for number, _ in enumerate(loader):
            if stops and number == 250:
                break
        assert number == (250 if stops else COUNT // 8 - 1)
        assert ref.locality().ranges - before < COUNT // 10


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_folder_that_was_removed_is_made_again(url, tmp_path, is_whole):
    ref = fetched(url, "image", mirror=yogadl.Mirror(tmp_path, limit=7_000_000))
    loader = ref.stream(shuffle=yogadl.Blocks(40, 8, 5)).batch(8)
    reader, _ = begun(loader, 10)
    if is_whole:  # all blocks of the epoch have come
        wait_until(lambda: block_bytes(tmp_path) >= COUNT * ROW_BYTES, "all blocks")
    for _ in range(10):  # something may just be written there
        shutil.rmtree(tmp_path, ignore_errors=True)
    list(reader)
    assert ref.locality().ranges < COUNT // 4
    before = ref.locality().ranges
    list(loader)
    assert ref.locality().ranges - before < COUNT // 10
    assert block_folders(tmp_path)


def test_a_limit_outlives_its_folder(url, tmp_path):
    ref = fetched(url, mirror=yogadl.Mirror(tmp_path, limit=7_000_000))
    reader, first = begun(STREAMS["plain"](ref), 5)
    for _ in range(10):  # something may just be written there
        shutil.rmtree(tmp_path, ignore_errors=True)
    assert_same_batches(first + list(reader), STREAMS["plain"](here(url)))
    for _ in range(2):
        list(ref.stream(shuffle=True).batch(32))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 7_000_000


def test_parts_that_were_removed_and_have_no_room_are_read_by_range(url, tmp_path):
    ref = fetched(url, mirror=tmp_path)
    reader, first = begun(ref.stream(shuffle=True, shuffle_seed=4).batch(32), 5)
    wait_until(lambda: ref.locality().parts_here == ref.locality().parts, "the mirror is filled")
    MirrorLocation(tmp_path).set_limit(100_000)
    for path in tmp_path.rglob("*.mdb"):
        path.unlink()
    assert_same_batches(first + list(reader), here(url).stream(shuffle=True, shuffle_seed=4).batch(32))


def test_a_file_that_is_gone_is_read_by_range(url, tmp_path):
    reader, first = begun(STREAMS["plain"](fetched(url, mirror=yogadl.Mirror(tmp_path, limit=7_000_000))), 40)
    for number, path in enumerate(block_names(tmp_path)):
        if number % 2:
            path.unlink()
        else:
            os.truncate(path, path.stat().st_size // 2)
    assert_same_batches(first + list(reader), STREAMS["plain"](here(url)))


def test_a_full_disk_is_said_once_and_read_by_range(url, tmp_path, monkeypatch, caplog):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    reader, first = begun(STREAMS["plain"](fetched(url, mirror=yogadl.Mirror(tmp_path, limit=7_000_000))), 1)
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with caplog.at_level(logging.WARNING):
        assert_same_batches(first + list(reader), STREAMS["plain"](here(url)))
    assert [line for line in caplog.messages if "record by record" in line] == caplog.messages[:1]
    assert not block_names(tmp_path)


def test_enough_is_enough(url, options):
    ref = fetched(url, **options, limits=yogadl.Limits(requests=40))
    with pytest.raises(SpendingError, match="40 requests were made"):
        list(STREAMS["plain"](ref))


@pytest.mark.parametrize("where", ["memory", "a mirror"])
def test_streams_of_several_threads_share_what_they_hold(url, tmp_path, where):
    ref = fetched(url, **WHERE[where](tmp_path))
    expected = list(STREAMS["plain"](here(url)))
    with futures.ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(lambda: list(STREAMS["plain"](ref))) for _ in range(3)]
        for stream in streams:
            assert_same_batches(stream.result(), expected)


@pytest.mark.parametrize(("records", "is_held"), [(3, False), (4, True)])
def test_the_smallest_block_that_is_held(url, records, is_held):
    stream = fetched(url, "image").stream(shuffle=yogadl.Blocks(records, 50, 4))
    assert (stream.plan().chosen == "blocks") == is_held
    assert (stream.run.block_ahead is not None) == is_held


PLANNED = {
    "all": lambda ref: ref.stream(shuffle=ORDER).batch(8),
    "a shard": lambda ref: ref.stream(shuffle=ORDER, shard_rank=1, num_shards=2).batch(8),
    "the default lanes": lambda ref: ref.stream(shuffle=yogadl.Blocks(40, 5)).batch(8),
    "a slice": lambda ref: ref[100:2600].stream(shuffle=ORDER).batch(8),
    "windows": lambda ref: ref.windows({"image": [-1, 0, 7]}, None).stream(shuffle=ORDER).batch(8),
    "a mix": lambda ref: thirds(ref).stream(shuffle=ORDER).batch(8),
    "a mix whose parents end": lambda ref: thirds(ref, (0.2, 0.7, 0.1)).stream(shuffle=ORDER).batch(8),
    "a mix whose parents begin again": lambda ref: (
        thirds(ref, (0.2, 0.7, 0.1), at_end="repeat").stream(shuffle=ORDER).batch(8)
    ),
}
EXACTLY_PLANNED = {
    "chunks": lambda ref: ref.chunks("tokens", 512).stream(shuffle=ORDER).batch(8),
    "chunks with their segments": lambda ref: (
        ref.chunks("tokens", 100, segments="segments").stream(shuffle=ORDER).batch(8)
    ),
    "chunks longer than documents": lambda ref: (
        ref.chunks("tokens", 1500).stream(shuffle=yogadl.Blocks(20, 4, 4)).batch(8)
    ),
    "a mix of chunks": lambda ref: (
        yogadl.mix({"a": (ref[:1800].chunks("tokens", 512), 2), "b": (ref[1800:].chunks("tokens", 512), 1)})
        .stream(shuffle=ORDER)
        .batch(8)
    ),
}


@pytest.mark.parametrize("size", [1, 2, 32])
@pytest.mark.parametrize("seed", range(3))
def test_a_parent_of_a_mapped_mix_may_have_its_first_record_late(url, size, seed):
    """A function is called record by record, so an announcement may be of one parent's first record alone."""
    read = []
    for ref in (fetched(url, "id"), here(url).fields("id")):
        mixed = yogadl.mix({"a": (ref[:512], 400), "b": (ref[512:514], 1)}, at_end="repeat", seed=seed)
        stream = mixed.stream(shuffle=yogadl.Blocks(16, 8, 1)).map(lambda one: one).batch(size)
        read.append(list(itertools.islice(stream, 1100 // size)))
        assert stream.plan().records == len(mixed)
    assert_same_batches(*read)


EACH_EPOCH = {
    "plain": lambda ref, **options: ref.stream(**options),
    "always the same": lambda ref, **options: ref.stream(**options, skip_shuffle_at_epoch_end=True),
    "a mix": lambda ref, **options: thirds(ref).stream(**options),
    "a mix always the same": lambda ref, **options: thirds(ref).stream(
        **options, skip_shuffle_at_epoch_end=True
    ),
    "a mix whose parents begin again": lambda ref, **options: thirds(
        ref, (0.2, 0.7, 0.1), at_end="repeat"
    ).stream(**options),
    "windows": lambda ref, **options: ref.windows({"image": [0, 1]}, None).stream(**options),
}


@pytest.mark.parametrize("name", EACH_EPOCH)
def test_each_epoch_is_read_in_blocks_from_its_first_record_on(url, name):
    ref = fetched(url, "image")
    batches = iter(EACH_EPOCH[name](ref, shuffle=yogadl.Blocks(25, 5, 4)).batch(8, epochs=None))
    steps, requests = len(EACH_EPOCH[name](ref, shuffle=True).batch(8)), []
    for _ in range(4):
        requests.append(ref.locality().ranges)
        for _ in range(steps):
            next(batches)
    first, *later = np.diff(requests)
    assert max(later) <= 1.15 * first


def test_what_a_view_scatters_is_planned_as_it_is_read(url):
    ref = fetched(url, "image")[::2]
    loader = ref.stream(shuffle=ORDER).batch(8)
    plan = loader.plan()
    assert plan.chosen == "ranges"
    assert not plan.of_blocks
    list(loader)
    assert plan.way("ranges").requests == ref.locality().ranges


@pytest.mark.parametrize("kind", ["a mix", "joined"])
@pytest.mark.parametrize("is_enough", [False, True])
def test_the_room_in_memory_is_for_all_parents(url, monkeypatch, kind, is_enough):
    refs = [fetched(url) for _ in range(3)]
    images = [each.fields("image") for each in refs]
    mixed = yogadl.mix({str(number): (each, 1) for number, each in enumerate(images)})
    ref = yogadl.concat(images) if kind == "joined" else mixed
    stream = ref.stream(shuffle=ORDER)
    need = stream.run.block_ahead.held_bytes
    set_constants(monkeypatch, HELD_MOST_IN_MEMORY_BYTES=need - (not is_enough))
    set_constants(monkeypatch, RANGED_CACHE_MOST_IN_MEMORY_BYTES=_held.MOST_IN_MEMORY_BYTES)
    assert stream.plan().chosen == ("blocks" if is_enough else "ranges")
    most = 0
    for number, _ in enumerate(stream.batch(8)):
        if not number % 8:
            stores = [
                store for each in refs for store in each._records.open()[1].parts.away._stores().values()
            ]
            most = max(most, sum(tally.size_bytes for store in stores for tally in store.tallies.copy()))
    assert (most > 0) == is_enough
    assert most <= need


@pytest.mark.parametrize("where", ["memory", "a mirror"])
def test_a_mix_goes_on_in_blocks_with_other_weights(url, tmp_path, where):
    read = []
    for ref in (fetched(url, **WHERE[where](tmp_path)), here(url)):
        cursor, found = None, []
        for weights in ((0.5, 0.3, 0.2), (0.2, 0.7, 0.1), (0.6, 0.1, 0.3)):
            mixed = thirds(ref, weights, at_end="repeat")
            reader, some = begun(mixed.stream(shuffle=ORDER, cursor=cursor).batch(16), 33)
            cursor, found = reader.state_dict(), found + some
        read.append([*found, *reader])
    assert_same_batches(*read)


@pytest.mark.parametrize("name", EXACTLY_PLANNED)
def test_the_plan_of_chunks_counts_what_is_read_of_their_lengths(url, name):
    ref = fetched(url)
    loader = EXACTLY_PLANNED[name](ref)
    plan = loader.plan()
    list(loader)
    found = ref.locality()
    assert plan.chosen == "blocks"
    assert (plan.way("blocks").requests, plan.way("blocks").bytes) == (found.ranges, found.range_bytes)


def test_chunks_take_as_many_requests_as_their_rows_if_these_were_stored(url, tmp_path):
    chunks = fetched(url).chunks("tokens", 512)
    yogadl.open_storage(tmp_path).submit(iter(chunks), "set", "1")
    stored = fetched(tmp_path.as_uri())
    (ours, _), (theirs, _) = (
        made(ref, chunked.stream(shuffle=ORDER).batch(8))
        for ref, chunked in ((chunks, chunks), (stored, stored))
    )
    assert ours <= 1.3 * theirs


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("where", ["memory", "a mirror"])
def test_each_block_of_a_mix_comes_once(url, tmp_path, where):
    ref = fetched(url, "image", **WHERE[where](tmp_path))
    stream = thirds(ref).stream(shuffle=yogadl.Blocks(25, 5, 4))
    requests, size_bytes = made(ref, stream.batch(8))
    assert requests <= COUNT // 25 + 120
    assert size_bytes <= 1.05 * COUNT * ROW_BYTES


@pytest.mark.parametrize("name", PLANNED)
def test_the_plan_counts_blocks(url, name):
    ref = fetched(url, "id", "image")
    loader = PLANNED[name](ref)
    plan = loader.plan()
    assert plan.chosen == "blocks"
    assert plan.of_blocks
    assert "*" not in str(plan)
    way = plan.way("blocks")
    assert (way.requests, way.bytes) == pytest.approx(made(ref, loader), rel=0.05)


def test_the_first_so_many_records_stand_for_a_large_epoch(url, monkeypatch):
    ref = fetched(url, "image")
    whole = PLANNED["all"](ref).plan().way("blocks")
    set_constants(monkeypatch, RUN_INDICES=128, PLAN_INDICES=128, COUNTED=1000)
    part = PLANNED["all"](ref).plan().way("blocks")
    assert (part.requests, part.bytes) == pytest.approx((whole.requests, whole.bytes), rel=0.2)


def test_where_no_shard_has_blocks_of_its_own_the_plan_says_ranges(url):
    stream = fetched(url, "image").stream(shuffle=ORDER, shard_rank=0, num_shards=3)
    assert stream.batch(8).plan().chosen == "ranges"


def test_a_mirror_with_room_is_filled(url, tmp_path):
    ref = fetched(url, mirror=tmp_path)
    loader = ref.stream(shuffle=ORDER).batch(8)
    assert loader.plan().chosen == "mirror"
    list(loader)
    assert not block_folders(tmp_path)


def test_what_forked_workers_receive_is_counted_beside_what_this_process_did(url):
    ref = fetched(url, "image")
    ref.gather(range(0, COUNT, 7))
    loader = ref.stream(shuffle=True).batch(50).prefetch(2, workers=2, start_method="fork")
    assert sum(len(batch["image"]) for batch in loader) == COUNT
    assert COUNT * ROW_BYTES <= loader.stats().range_bytes <= 2 * COUNT * ROW_BYTES
