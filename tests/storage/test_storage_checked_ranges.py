"""What is read by range and compared: all that is given is as it was written, and none of it comes twice."""

import itertools
import os
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from inside import (
    GAP_BYTES,
    Checksums,
    DatasetKey,
    FetchedRange,
    LocalBucket,
    Ranges,
    open_table,
    read_index,
    set_constants,
)
from processes import in_fork, wait_until
from trees import assert_same

import yogadl
from yogadl.cli import main
from yogadl.errors import CacheFormatError, StorageError

COUNT = 90
WAYS = {"verify": ({"verify": "block"}, {}), "check": ({}, {"check": True})}


def record(number):
    random = np.random.default_rng(number)
    return {
        "label": number,
        "image": random.integers(0, 255, (40, 50), np.uint8),
        "tokens": random.integers(0, 9, 7 * (number % 60)).astype(np.int32),
        "text": f"ä{number}" * (1 + number % 5),
        "jpeg": random.bytes(1000 + (number * 37) % 3000),
        "any": np.full((2,) * (number % 3), number),
    }


class Bucket:
    """A bucket in a folder, with a dataset in it."""

    def __init__(self, folder, records, **options):
        self.url = folder.as_uri()
        self.folder = folder
        self.records = records
        storage = yogadl.open_storage(folder)
        storage.submit(records, "set", "1", **options)
        key, root = DatasetKey("set", "1"), storage._backend.root
        manifest = storage._backend.catalogue.published(key).manifest
        table = open_table(root, manifest)
        self.names = [field.name for field in manifest.spec.fields]
        self.sums = Checksums(table, self.names, lambda part: read_index(root, key, table, part), "", "")

    def fetched(self, way="verify", mirror=None, **options):
        opening, fetching = WAYS[way]
        storage = yogadl.open_storage(self.url, mirror=mirror, **opening, **options)
        return storage.fetch("set", "1", **fetching)

    def blocks_of(self, name):
        """Return the numbers of the blocks of a field that are not empty."""
        field = self.names.index(name)
        found = [
            np.arange(len(self.sums.part))[self.sums.blocks_of(field, kind)] for kind in ("rows", "heap")
        ]
        return [int(block) for block in np.concatenate(found) if self.sums.length[block]]

    @contextmanager
    def flipped(self, block, offset=0):
        """Flip a bit of a block in the bucket, whose object has the same size and ETag as before."""
        sums = self.sums
        path = self.folder / "set" / "parts" / f"{sums.table.sha256[sums.part[block]]}.mdb"
        position = int(sums.position[block]) + offset % int(sums.length[block])
        flip(path, position)
        try:
            yield
        finally:
            flip(path, position)


def flip(path, position):
    stat = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 16]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bucket")
    return Bucket(
        folder, [record(number) for number in range(COUNT)], build=yogadl.BuildOptions(part_bytes=100_000)
    )


def damaged_records(error, name):
    """Return which records an error says are damaged."""
    found = re.search(rf"field '{name}', records (\d+) to (\d+): the bytes in part \w{{64}}", str(error))
    assert found, error
    return range(int(found[1]), int(found[2]) + 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", record(0))
def test_a_flipped_bit_of_any_block_is_an_error_for_its_records_and_for_no_others(bucket, name, way):
    assert len(bucket.blocks_of(name)) > 4
    for block, offset in zip(bucket.blocks_of(name), itertools.cycle((0, -1, 77))):
        with bucket.flipped(block, offset):
            ref = bucket.fetched(way)
            with pytest.raises(CacheFormatError, match="build the dataset again, or restore") as caught:
                ref.gather(np.arange(COUNT))
            damaged = damaged_records(caught.value, name)
            others = np.setdiff1d(np.arange(COUNT), damaged)
            assert len(others)
            for index, found in zip(others, list(ref.select(others)), strict=True):
                assert_same(found, bucket.records[index])
            wrong = 0
            for index in damaged:  # of a block of the heap some have no value there
                try:
                    assert_same(ref[index], bucket.records[index])
                except CacheFormatError:
                    wrong += 1
            assert wrong


STREAMS = {
    "a shuffle": lambda ref: ref.stream(shuffle=True).batch(8),
    "in order": lambda ref: ref.stream().batch(8),
    "records": lambda ref: ref.stream(shuffle=True),
    "blocks": lambda ref: ref.stream(shuffle=yogadl.Blocks(records=8, window=4)).batch(8),
    "threads": lambda ref: ref.stream(shuffle=True).batch(8).prefetch(2, threads=2),
    "workers": lambda ref: ref.stream(shuffle=True).batch(8).prefetch(2, workers=2, start_method="fork"),
    "chunks": lambda ref: ref.chunks("tokens", 50).stream(shuffle=True).batch(4),
    "chunks in blocks": lambda ref: (
        ref.chunks("tokens", 50).stream(shuffle=yogadl.Blocks(records=8, window=4, lanes=2)).batch(4)
    ),
    "a mix in blocks": lambda ref: (
        yogadl.mix({"a": (ref[:50], 5), "b": (ref[50:], 4)})
        .stream(shuffle=yogadl.Blocks(records=8, window=4, lanes=2))
        .batch(4)
    ),
    "a view": lambda ref: yogadl.concat([ref[5:], ref[:5]]).fields("tokens").stream(shuffle=True).batch(4),
    "gather": lambda ref: [ref.gather(np.arange(start, COUNT, 7)) for start in range(7)],
    "one": lambda ref: [ref[number] for number in range(COUNT)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", STREAMS)
def test_whoever_reads_gets_the_error(bucket, stream, way):
    of_entries, *_, of_values = bucket.blocks_of("tokens")
    for block in (of_entries, of_values):
        with bucket.flipped(block, 5), pytest.raises(CacheFormatError, match="field 'tokens', records"):
            list(STREAMS[stream](bucket.fetched(way)))
    assert list(STREAMS[stream](bucket.fetched(way)))


@pytest.mark.parametrize("kept", [0, None])
def test_small_fields_are_compared_whether_they_are_kept_or_not(bucket, kept, monkeypatch):
    if kept is not None:
        set_constants(monkeypatch, KEPT_BYTES=kept)
    block = bucket.blocks_of("label")[1]
    with bucket.flipped(block):
        ref = bucket.fetched().fields("label")
        with pytest.raises(CacheFormatError) as caught:
            list(ref.stream(shuffle=True).batch(8))
        for index in np.setdiff1d(np.arange(COUNT), damaged_records(caught.value, "label")):
            assert ref[int(index)]["label"] == index
    requests = ref.locality().ranges
    for _ in range(2):
        labels = [ref[number]["label"] for number in range(COUNT)]
    assert labels == list(range(COUNT))
    assert ref.locality().ranges == requests + 1  # for the one that was damaged


@pytest.mark.parametrize("way", WAYS)
def test_what_the_mirror_has_is_read_there_and_the_rest_is_compared(bucket, tmp_path, way):
    bucket.fetched(mirror=tmp_path)
    for part in sorted(tmp_path.rglob("*.mdb"))[::2]:
        part.unlink()
    here = {part.stem for part in tmp_path.rglob("*.mdb")}
    sums, found = bucket.sums, set()
    for block in bucket.blocks_of("image"):
        is_here = sums.table.sha256[sums.part[block]] in here
        found.add(is_here)
        with bucket.flipped(block):
            ref = bucket.fetched(way, mirror=yogadl.Mirror(tmp_path, fill="never"))
            if is_here:
                list(ref.stream(shuffle=True).batch(8))
            else:
                with pytest.raises(CacheFormatError, match="field 'image'"):
                    list(ref.stream(shuffle=True).batch(8))
    assert found == {True, False}


def test_a_part_that_arrives_meanwhile_is_no_way_around_the_check(bucket, tmp_path, monkeypatch):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0, FIRST_READS=0)
    ref = bucket.fetched("check", mirror=tmp_path)
    for _ in range(3):
        for number, found in enumerate(ref.stream()):
            assert_same(found, bucket.records[number])
    wait_until(lambda: ref.locality().parts_here == ref.locality().parts, "the parts")
    [path] = [path for path in tmp_path.rglob("*.mdb") if bucket.sums.table.sha256[0] in path.name]
    again = bucket.fetched("check", mirror=tmp_path)
    content = bytearray(path.read_bytes())
    content[int(bucket.sums.position[bucket.blocks_of("image")[0]])] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    with pytest.raises(CacheFormatError, match="field 'image'"):
        again[0]


@pytest.fixture
def asked(monkeypatch):
    """Note which ranges of parts are asked for; `asked.answer` may be replaced."""

    class Asked(list):
        def answer(self, found, name, start):
            return found

    fetch_range, notes = LocalBucket.fetch_range, Asked()

    def noted(self, name, start, stop, *, tag=None):
        if name.endswith(".mdb"):
            notes.append((name, start, stop))
            return notes.answer(fetch_range(self, name, start, stop, tag=tag), name, start)
        return fetch_range(self, name, start, stop, tag=tag)

    monkeypatch.setattr(LocalBucket, "fetch_range", noted)
    return notes


@pytest.mark.parametrize("way", WAYS)
def test_bytes_that_were_not_compared_are_never_given(bucket, asked, way):
    """Though the store gives the right ones first, and others when it is asked again."""
    seen = set()

    def answer(found, name, start):
        if (name, start) not in seen:
            seen.add((name, start))
            return found
        content = bytearray(found.content)
        for place in range(0, len(content), 1 + len(content) // 50):
            content[place] ^= 16
        return FetchedRange(memoryview(content), found.object)

    asked.answer = answer
    ref = bucket.fetched(way)
    for number, found in zip(ref.stream(shuffle=True).indices(0), ref.stream(shuffle=True), strict=True):
        assert_same(found, bucket.records[number])
    other = bucket.fetched(way)  # for which all is asked again
    wrong = 0
    for number in range(COUNT):
        try:
            assert_same(other[number], bucket.records[number])
        except CacheFormatError:
            wrong += 1
    assert wrong


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [name for name in STREAMS if name != "workers"])
def test_no_byte_comes_twice(bucket, asked, stream, way):
    """Of what may be held; whoever asks for it, and however many of a block's rows a batch has."""
    ref = bucket.fetched(way)
    for _ in range(2):
        list(STREAMS[stream](ref))
    assert asked
    for (name, _, stop), (other, start, _) in itertools.pairwise(sorted(asked)):
        assert name != other or stop <= start
    sums = bucket.sums
    known = {
        (f"set/parts/{sums.table.sha256[part]}.mdb", position, position + length)
        for part, position, length in zip(sums.part, sums.position, sums.length, strict=True)
    }
    begins, ends = {(name, start) for name, start, _ in known}, {(name, stop) for name, _, stop in known}
    for name, start, stop in asked:  # whole blocks, and what lies between neighbours
        assert (name, start) in begins
        assert (name, stop) in ends
    between = sum(stop - start for _, start, stop in asked) - int(sums.length.sum())
    assert between < len(sums.length) * GAP_BYTES


def test_rows_of_one_block_cost_one_request(bucket):
    ref = bucket.fetched().fields("image")
    _, first, second, *_ = bucket.sums.table.first_record.tolist()  # of parts with a block each
    assert second - first > 3
    ref.gather([second - 1, first + 1, first, first + 1])
    assert ref.locality().ranges == 1
    ref.gather([first + 2, COUNT - 1])
    assert ref.locality().ranges == 2
    _, one, *_, last = bucket.blocks_of("image")
    assert ref.locality().range_bytes == bucket.sums.length[[one, last]].sum()


LENGTH = 2**16  # of each block of `wide`


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A bucket with blocks of one size: two rows each, but for what is small, and far from each other."""
    images = np.random.default_rng(0).integers(0, 255, (40, LENGTH // 2), np.uint8)
    columns = {"image": images, "label": np.arange(40)}
    made = Bucket(
        tmp_path_factory.mktemp("wide"), columns, build=yogadl.BuildOptions(part_bytes=LENGTH + 8192)
    )
    blocks = made.blocks_of("image")
    assert (made.sums.length[blocks] == LENGTH).all()
    assert len(blocks) == 20
    return made


@pytest.fixture
def one_by_one(monkeypatch):
    """Let each block be asked for by itself."""
    set_constants(monkeypatch, TOGETHER_BYTES=1, GAP_BYTES=-1)


def images_of(ref, wide):
    """Return a function that reads a record, and compares it."""

    def read(number):
        np.testing.assert_array_equal(ref[number]["image"], wide.records["image"][number])

    return read


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("over", [0, 1])
def test_blocks_are_held_as_long_as_there_is_room_those_longest_that_were_used_last(wide, monkeypatch, over):
    set_constants(monkeypatch, PLANNING_MOST_CHECKED_BYTES=3 * LENGTH - over)
    ref = wide.fetched().fields("image")
    read = images_of(ref, wide)
    for number in (0, 2, 1, 4):  # of blocks 0, 1, 0, 2
        read(number)
    assert ref.locality().ranges == 3
    read(0)
    assert ref.locality().ranges == 3
    read(2)
    assert ref.locality().ranges == 3 + over
    for number in range(40):
        read(number)
    blocks = ref._records.parent.open()[1].parts.away._ranges._known().pages
    assert blocks.size_bytes == len(blocks) * LENGTH == (3 - over) * LENGTH


@pytest.mark.usefixtures("one_by_one")
def test_a_block_that_has_no_room_is_read_all_the_same(wide, monkeypatch):
    set_constants(monkeypatch, PLANNING_MOST_CHECKED_BYTES=LENGTH // 2)
    ref = wide.fetched().fields("image")
    for batch, indices in zip(ref.stream().batch(4), np.arange(40).reshape(-1, 4), strict=True):
        np.testing.assert_array_equal(batch["image"], wide.records["image"][indices])
    assert len(ref._records.parent.open()[1].parts.away._ranges._known().pages) == 0


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("over", [0, 1])
def test_a_batch_has_so_many_bytes_of_blocks_in_its_hands(wide, monkeypatch, over):
    set_constants(monkeypatch, CHECKED_RANGES_AT_ONCE_BYTES=3 * LENGTH - over)
    arrived, at_once = Ranges._arrived, []

    def noted(self, numbers, *, is_kept):
        at_once.append(int(self.sums.length[numbers].sum()))
        return arrived(self, numbers, is_kept=is_kept)

    monkeypatch.setattr(Ranges, "_arrived", noted)
    found = wide.fetched().fields("image").gather(np.arange(0, 24, 2))["image"]
    np.testing.assert_array_equal(found, wide.records["image"][0:24:2])
    assert at_once == [(3 - over) * LENGTH] * (12 // (3 - over))


@pytest.fixture
def ahead(wide, monkeypatch):
    """Note what is asked for before it is read: lists of places among the blocks of `wide`."""
    find, notes, blocks = Ranges._find, [], wide.blocks_of("image")

    def noted(self, numbers, *, is_kept, is_urgent):
        found, own = find(self, numbers, is_kept=is_kept, is_urgent=is_urgent)
        if own and not is_urgent:
            notes.append([blocks.index(number) for number in numbers if number in own])
        return found, own

    monkeypatch.setattr(Ranges, "_find", noted)
    return notes


def announced(ref, indices):
    return ref._records.parent.will_need(np.array(indices), [0])


@pytest.mark.parametrize("over", [0, 1])
def test_so_much_is_asked_for_ahead(wide, monkeypatch, ahead, over):
    set_constants(monkeypatch, TOGETHER_BYTES=LENGTH, PLANNING_AHEAD_BYTES=3 * LENGTH + over)
    ref = wide.fetched().fields("image")
    held = announced(ref, np.arange(40))
    assert ahead == []  # before any of it is read
    ref[0]
    assert ahead == [[1, 2, 3, 4][: 3 + over]]
    ref[1]
    assert len(ahead) == 1  # of the same block
    ref[2]
    ref[4]
    assert ahead[1:] == ([[5, 6]] if over else [[4], [5]])
    assert held


@pytest.mark.parametrize("over", [0, 1])
def test_blocks_are_asked_for_once_there_is_room_for_several(wide, monkeypatch, ahead, over):
    set_constants(monkeypatch, TOGETHER_BYTES=2 * LENGTH + over, PLANNING_AHEAD_BYTES=6 * LENGTH)
    ref = wide.fetched().fields("image")
    held = announced(ref, np.arange(40))
    for number in range(0, 40, 2):
        ref[number]
    count = 2 + over
    assert [len(blocks) for blocks in ahead[:4]] == [6, *[count] * 3]
    assert list(itertools.chain.from_iterable(ahead)) == list(range(1, 20))
    assert held


def test_a_block_larger_than_all_that_is_asked_for_ahead_is_asked_for_alone(wide, monkeypatch, ahead):
    set_constants(monkeypatch, PLANNING_AHEAD_BYTES=1)
    ref = wide.fetched().fields("image")
    held = announced(ref, np.arange(40))
    for number in range(40):
        ref[number]
    assert ahead == [[number] for number in range(1, 20)]
    assert held


def test_all_fields_are_asked_for_ahead_equally_far(bucket, monkeypatch):
    set_constants(monkeypatch, PLANNING_AHEAD_BYTES=40_000, KEPT_BYTES=0)
    find, asked = Ranges._find, []

    def noted(self, numbers, *, is_kept, is_urgent):
        found, own = find(self, numbers, is_kept=is_kept, is_urgent=is_urgent)
        asked.extend(number for number in numbers if number in own and not is_urgent)
        return found, own

    monkeypatch.setattr(Ranges, "_find", noted)
    ref = bucket.fetched()
    held = ref._records.will_need(np.arange(COUNT))
    asked.clear()
    ref[0]
    sums = bucket.sums
    assert len({sums.group_of(block) for block in asked}) >= 6  # rows of most fields, and heaps
    assert held


def test_an_announced_block_that_is_here_is_not_asked_for(wide, ahead):
    ref = wide.fetched().fields("image")
    for number in range(40):
        ref[number]
    for _ in range(3):
        held = announced(ref, np.arange(40))
        ref[3]
        assert held
    assert ahead == []


def test_an_announcement_that_nobody_holds_is_forgotten(wide, ahead):
    ref = wide.fetched().fields("image")
    announced(ref, np.arange(40))
    for number in range(40):
        images_of(ref, wide)(number)
    assert ahead == []


def test_a_stream_that_waits_takes_no_room_from_another(wide, monkeypatch, ahead):
    set_constants(monkeypatch, TOGETHER_BYTES=LENGTH, PLANNING_AHEAD_BYTES=3 * LENGTH)
    ref = wide.fetched().fields("image")
    waiting = announced(ref, np.arange(20))
    ref[0]
    reading = announced(ref, np.arange(20, 40))
    ref[20]
    assert ahead == [[1, 2, 3], [11, 12, 13]]
    assert waiting
    assert reading


@pytest.mark.usefixtures("one_by_one")
def test_what_was_announced_by_who_stopped_early_is_not_asked_for_later(wide, monkeypatch, asked):
    set_constants(monkeypatch, PLANNING_MOST_CHECKED_BYTES=4 * LENGTH, PLANNING_AHEAD_BYTES=2 * LENGTH)
    ref = wide.fetched().fields("image")
    for seed in range(5):
        with_seed = iter(ref.stream(shuffle=True, shuffle_seed=seed).batch(2))
        next(with_seed)
        with_seed.close()
    assert len(asked) < 5 * 6
    read, before = images_of(ref, wide), len(asked)
    for number in range(1, 40, 2):
        read(number)
    assert len(asked) - before <= 20 + 10


@pytest.mark.parametrize("fails", [CacheFormatError("it is ill"), StorageError(5, "it is ill")])
def test_who_waits_for_what_fails_elsewhere_asks_by_itself(wide, asked, fails):
    gate, failing = threading.Event(), [fails]

    def answer(found, name, start):
        if failing:
            gate.wait(60)
            raise failing.pop()
        return found

    asked.answer = answer
    ref = wide.fetched().fields("image")
    with ThreadPoolExecutor(3) as pool:
        outcomes = [pool.submit(images_of(ref, wide), 3) for _ in range(3)]
        wait_until(lambda: asked, "the request")
        gate.set()
    assert sorted(str(outcome.exception()) for outcome in outcomes) == sorted(["None", "None", str(fails)])
    assert len(asked) == 2


def test_many_threads_read_the_same_blocks_while_others_are_let_go(wide, monkeypatch):
    set_constants(monkeypatch, PLANNING_MOST_CHECKED_BYTES=3 * LENGTH, PLANNING_AHEAD_BYTES=3 * LENGTH)
    ref = wide.fetched().fields("image")

    def read(seed):
        for turn in range(4):
            indices = np.random.default_rng(seed * 10 + turn).permutation(40)
            held = announced(ref, indices)
            for some in np.array_split(indices, 9):
                np.testing.assert_array_equal(ref.gather(some)["image"], wide.records["image"][some])
            assert held

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(6)))
    blocks = ref._records.parent.open()[1].parts.away._ranges._known().pages
    assert blocks.size_bytes == len(blocks) * LENGTH <= (3 + 3) * LENGTH


def test_a_fork_begins_anew_and_both_sides_go_on(wide, asked):
    gate = threading.Event()
    parent = os.getpid()

    def answer(found, name, start):
        if os.getpid() == parent:
            gate.wait(60)
        return found

    asked.answer = answer
    ref = wide.fetched().fields("image")
    read = images_of(ref, wide)
    waiting = threading.Thread(target=read, args=(3,))
    waiting.start()
    wait_until(lambda: asked, "a request under way")

    def forked():
        for number in range(40):
            read(number)
        return True

    assert in_fork(forked)
    gate.set()
    waiting.join()
    for number in range(40):
        read(number)


def test_indexes_come_once_and_several_at_a_time(wide, monkeypatch):
    names, read = [], Checksums.load

    def noted(self, part):
        names.append(threading.current_thread().name)
        read(self, part)

    monkeypatch.setattr(Checksums, "load", noted)
    ref = wide.fetched().fields("image")
    for _ in range(3):
        ref.gather(np.arange(40))
    assert len(names) == ref.locality().parts
    assert set(names) == {"yogadl-ranges"}


def test_an_index_that_is_gone_is_named(tmp_path):
    made = Bucket(tmp_path, {"x": np.arange(10)})
    for path in Path(tmp_path).rglob("*.idx"):
        path.unlink()
    with pytest.raises(CacheFormatError, match=r"records 0 to 9: the index .* is missing"):
        made.fetched()[3]


def test_values_of_no_bytes_are_read(tmp_path):
    made = Bucket(tmp_path, {"x": np.zeros((3, 0)), "y": [b""] * 3})
    ref = made.fetched()
    assert [found["y"] for found in ref.stream()] == [b""] * 3
    assert ref[1]["x"].shape == (0,)


def test_it_goes_with_the_storage_to_other_processes(bucket):
    ref = bucket.fetched()
    block = bucket.blocks_of("image")[0]
    with bucket.flipped(block), pytest.raises(CacheFormatError, match="field 'image'"):
        pickle.loads(pickle.dumps(ref))[0]
    assert_same(pickle.loads(pickle.dumps(ref))[0], bucket.records[0])


def test_the_command_compares_too(bucket, capsys):
    words = ["head", "set", "1", "-s", bucket.url, "--mirror", "none", "--verify", "block"]
    assert main([*words]) == 0
    block = bucket.blocks_of("image")[0]
    with bucket.flipped(block):
        assert main([*words]) == 1
    assert "field 'image', records" in capsys.readouterr().err


PLANNED = {
    "in order": lambda ref: ref.stream().batch(4),
    "blocks": lambda ref: ref.stream(shuffle=yogadl.Blocks(records=2, window=3, lanes=1)).batch(2),
    "a shard": lambda ref: ref.stream(shard_rank=1, num_shards=3).batch(2),
    "a shuffle": lambda ref: ref.stream(shuffle=True).batch(4),
    "labels": lambda ref: ref.fields("label").stream(shuffle=True).batch(4),
}


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_counts_whole_blocks_each_once(wide, name):
    ref = wide.fetched()
    read = PLANNED[name](ref)
    way = read.plan(epochs=3).way("ranges")
    for _ in range(3):
        list(read)
    assert (way.requests, way.bytes) == (ref.locality().ranges, ref.locality().range_bytes)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", ["in order", "blocks", "a shuffle"])
def test_a_plan_counts_them_again_where_there_is_no_room(wide, monkeypatch, name):
    set_constants(
        monkeypatch,
        PLANNING_MOST_CHECKED_BYTES=5 * LENGTH,
        PLANNING_AHEAD_BYTES=LENGTH,
    )
    ref = wide.fetched().fields("image")
    read = PLANNED[name](ref)
    way = read.plan(epochs=4).way("ranges")
    for _ in range(4):
        list(read)
    assert ref.locality().ranges > 40
    assert way.requests == pytest.approx(ref.locality().ranges, rel=0.2)
    assert way.bytes == pytest.approx(ref.locality().range_bytes, rel=0.2)
