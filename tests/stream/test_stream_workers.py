"""Worker processes: the same batches, records and cursors as without them, however many there are."""

import functools
import gc
import itertools
import os
import pickle
import sys
import threading
import time
import traceback

import numpy as np
import psutil
import pytest
from failing import FAILS, check_error, failing
from inside import Cut, Point, Run, count_of, pickled, pieces_of
from memory_source import MemorySource, batch_ids, open_stream
from placed import PADDED, check_places, placed
from sizes import around, records_of, rows_of, scaled
from trees import JSON_VALUES
from worker_functions import batch_noise, doubled, half_x, noisy, summed, with_pid

import yogadl
from yogadl.errors import ConfigurationError, StageError

COUNT = 103
WORKERS = (1, 2, 5)


def records():
    return {
        "id": np.arange(COUNT),
        "x": np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2),
        "text": [f"r{number}" for number in range(COUNT)],
        "ragged": [np.arange(number % 4) for number in range(COUNT)],
        "tree": [JSON_VALUES[number % len(JSON_VALUES)] for number in range(COUNT)],
    }


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    return storage.submit(records(), "set", "1", json="tree")


def shuffled(ref, **options):
    return ref.stream(shuffle=True, shuffle_seed=7, **options)


def mixed(ref):
    parts = {"a": (ref[:40], 0.6), "b": (ref[40:], 0.4)}
    return yogadl.mix(parts, seed=3, at_end="repeat").stream()


LOADERS = {
    "batches": lambda ref: shuffled(ref).batch(8),
    "one at a time": lambda ref: shuffled(ref).batch(1),
    "all at once": lambda ref: shuffled(ref).batch(200),
    "short ones dropped": lambda ref: shuffled(ref).batch(8, drop_remainder=True, epochs=3),
    "several epochs": lambda ref: shuffled(ref).batch(8, epochs=2),
    "across epochs": lambda ref: shuffled(ref).batch(8, epochs=3, across_epochs=True),
    "across, dropped": lambda ref: shuffled(ref).batch(50, True, 3, True),
    "longer than epochs": lambda ref: shuffled(ref[:5]).batch(12, epochs=4, across_epochs=True),
    "collated": lambda ref: shuffled(ref).batch(8, collate=summed, padding_field="pad"),
    "mapped": lambda ref: shuffled(ref).map(doubled).random_map(noisy).batch(8, epochs=2),
    "mapped batches": lambda ref: shuffled(ref).batch(8, epochs=2).map(doubled).random_map(batch_noise),
    "mapped view": lambda ref: ref.map(doubled)[3::2].stream(shuffle=True).batch(8),
    "a padded shard": lambda ref: shuffled(ref, shard_rank=2, num_shards=3, pad_shard_remainder=True).batch(
        4, epochs=2, padding_field="pad"
    ),
    "an uneven shard": lambda ref: shuffled(ref, shard_rank=1, num_shards=4).random_map(noisy).batch(3),
    "from an offset": lambda ref: shuffled(ref, start_offset=50).batch(8, epochs=2),
    "ranges skipped": lambda ref: shuffled(ref).skip_ranges([(3, 9), (50, 70)]).random_map(noisy).batch(8),
    "blocks": lambda ref: ref.stream(
        shuffle=yogadl.Blocks(records=8, window=24, lanes=2), shuffle_seed=1
    ).batch(8),
    "a mix": lambda ref: mixed(ref).random_map(noisy).batch(8),
    "joined": lambda ref: shuffled(yogadl.concat([ref[50:], ref[:20]])).batch(8),
    "finished epochs skipped": lambda ref: shuffled(ref).batch(8, skip_finished_epoch=True),
    "records": shuffled,
    "mapped records": lambda ref: shuffled(ref).map(doubled).random_map(noisy),
    "some records": lambda ref: shuffled(ref, shard_rank=1, num_shards=2).skip_ranges([(0, 11)]),
}


def assert_same(found, wanted):
    """Check that two trees are the same, to the last bit."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            assert_same(found[name], value)
    elif isinstance(wanted, list | tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.flags.writeable
        assert found.tolist() == wanted.tolist()
    elif isinstance(wanted, memoryview):
        assert found.readonly == wanted.readonly
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())
    else:
        assert found == wanted


def seen(items):
    """Return each item with the cursor after it, which records it has, and the cursor at the end."""
    found = []
    for item in items:
        found.append((item, items.state_dict(), items.last))
    return [*found, (None, items.state_dict(), None)]


def check_seen(found, wanted):
    assert len(found) == len(wanted)
    for (item, cursor, last), (wanted_item, wanted_cursor, wanted_last) in zip(found, wanted, strict=True):
        assert_same(item, wanted_item)
        assert cursor == wanted_cursor
        for one, other in zip(last or (), wanted_last or (), strict=True):
            assert np.array_equal(one, other)


# Each loader with one number of workers, by turns; with all, what differs in how work is shared out. Most are
# forked, which is quickest; some of those are started in the usual way.
SHARED_OUT = [(kind, WORKERS[number % 3], "fork") for number, kind in enumerate(LOADERS)]
SHARED_OUT += [
    (kind, workers, "forkserver" if number == 1 else "fork")
    for kind in ("batches", "across, dropped", "mapped", "an uneven shard", "a mix", "records")
    for number, workers in enumerate(
        workers for workers in WORKERS if (kind, workers, "fork") not in SHARED_OUT
    )
]


@pytest.mark.parametrize(("kind", "workers", "method"), SHARED_OUT)
def test_batches_records_and_cursors_are_the_same(ref, kind, workers, method):
    alone = LOADERS[kind](ref)
    loader = LOADERS[kind](ref).prefetch(3, workers=workers, start_method=method)
    wanted = [seen(iter(alone)) for _ in range(2)]
    for one in wanted:  # both epochs by the same processes
        check_seen(seen(iter(loader)), one)
    for number in (0, len(wanted[0]) // 2, len(wanted[0]) - 3, len(wanted[0]) - 2):
        cursor = wanted[0][max(0, number)][1]
        for one in (alone, loader):
            one.load_state_dict(cursor)
        check_seen(seen(iter(loader)), seen(iter(alone)))


@pytest.mark.parametrize("kind", ["batches", "mapped", "across epochs"])
def test_an_endless_iterator_is_left_and_gone_on_with(ref, kind):
    def endless(workers):
        stream = shuffled(ref).random_map(noisy) if kind == "mapped" else shuffled(ref)
        loader = stream.batch(10, epochs=None, across_epochs=kind == "across epochs")
        return loader.prefetch(2, workers=workers, start_method="fork") if workers else loader

    alone, loader = iter(endless(0)), iter(endless(2))
    for _ in range(3):
        for _ in range(14):
            assert_same(next(loader), next(alone))
        assert loader.state_dict() == alone.state_dict()
        loader.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_is_replayed_in_this_process(ref, workers):
    loader = LOADERS["mapped batches"](ref).prefetch(2, workers=workers, start_method="fork").map(with_pid)
    for step, batch in enumerate(loader):
        assert_same(loader.batch_at(step), batch)


def test_what_comes_after_is_called_here_with_the_same_randomness(ref):
    alone = shuffled(ref).batch(8, epochs=2).map(doubled).random_map(batch_noise)
    loader = shuffled(ref).batch(8, epochs=2).map(doubled).prefetch(2, workers=2).random_map(batch_noise)
    check_seen(seen(iter(loader)), seen(iter(alone)))
    where = shuffled(ref).batch(8).map(with_pid).prefetch(2, workers=2, start_method="fork")
    here = where.map(lambda batch: (batch["pid"], os.getpid()))
    assert {pid for _, pid in here} == {os.getpid()}
    assert os.getpid() not in {pid for pid, _ in here}
    assert repr(here).endswith("map(with_pid), map(<lambda>)>")


def test_a_prefetch_before_has_nothing_to_do(ref):
    loader = shuffled(ref).batch(8).prefetch(2).map(doubled).prefetch(2, workers=2).prefetch(1)
    check_seen(seen(iter(loader)), seen(iter(shuffled(ref).batch(8).map(doubled))))
    assert not [one for one in threading.enumerate() if one.name == "yogadl-prefetch" and one.is_alive()]


def test_records_are_read_with_their_places():
    stream = placed(103, **PADDED, start_offset=5)
    loader = stream.batch(8, epochs=2, padding_field="p").prefetch(2, workers=2)
    check_places(stream, list(loader), (0, 1), "p")


def test_functions_of_scripts_and_closures_are_sent(ref):
    factor = 3
    loader = shuffled(ref).map(lambda record: record["id"] * factor).batch(8).prefetch(2, workers=2)
    assert np.concatenate(list(loader)).tolist() == (3 * shuffled(ref).indices()).tolist()


class Box:
    """What has no stored form."""

    def __init__(self, number):
        self.number = number


def test_what_has_no_stored_form_comes_back(ref):
    class Local(Box):
        pass

    loader = shuffled(ref).batch(8).map(lambda batch: Local(batch["id"])).prefetch(2, workers=2)
    boxes = list(loader)
    assert {type(box) for box in boxes} == {Local}
    assert np.concatenate([box.number for box in boxes]).tolist() == shuffled(ref).indices().tolist()


def test_the_error_of_a_function_that_was_sent_names_its_file_and_line(ref):
    def fails(record):
        raise LookupError("gone")

    line = fails.__code__.co_firstlineno + 1
    with pytest.raises(StageError) as caught:
        list(ref.stream().map(fails).batch(8).prefetch(2, workers=1))
    assert f'File "{__file__}", line {line}, in fails' in "".join(traceback.format_exception(caught.value))


def test_of_single_records_all_before_the_error_are_delivered_and_next_tries_again():
    records = iter(failing().prefetch(2, workers=2, start_method="fork"))
    for _ in range(2):
        assert check_error(records, 1 if records.last is None else FAILS + 1).record == FAILS
        assert records.state_dict()["position"] == FAILS


def test_a_source_that_fails_is_an_error_after_what_comes_before_it():
    batches = iter(
        open_stream(MemorySource(200, fails_at=150)).batch(4).prefetch(2, workers=2, start_method="fork")
    )
    for first in range(0, 148, 4):
        assert next(batches)["id"].tolist() == list(range(first, first + 4))
    for _ in range(2):
        with pytest.raises(KeyError, match="on fire"):
            next(batches)
    assert batches.state_dict()["position"] == 148


def fail_here(batch):
    if batch["id"][0] == 16:
        raise ValueError("not here")
    return batch


def test_a_function_that_fails_after_the_workers_is_tried_again(ref):
    batches = iter(ref.stream().batch(8).prefetch(2, workers=2, start_method="fork").map(fail_here))
    assert batch_ids(itertools.islice(batches, 2)) == [list(range(8)), list(range(8, 16))]
    for _ in range(2):
        with pytest.raises(StageError, match="begins with record 16: ValueError: not here"):
            next(batches)
    batches.load_state_dict(ref.stream().cursor(24))
    assert next(batches)["id"].tolist() == list(range(24, 32))


def locked_at(number, given):
    ids = given if isinstance(given, list) else [given]
    return threading.Lock() if number in [int(one["id"]) for one in ids] else given


def split(batch):
    return [{"id": number} for number in batch["id"]]


LOCKING = {
    "batches": (
        lambda lock, ref: ref.stream().batch(8).map(lambda batch: lock(split(batch))),
        "map(<lambda>)",
    ),
    "collate": (lambda lock, ref: ref.stream().batch(8, collate=lock), "collate=functools.partial("),
}


@pytest.mark.parametrize("kind", LOCKING)
def test_what_cannot_be_sent_back_is_said_to_be_that(ref, kind):
    made, name = LOCKING[kind]
    batches = iter(made(functools.partial(locked_at, 21), ref).prefetch(2, workers=1, start_method="fork"))
    for _ in range(2):
        assert next(batches)
    with pytest.raises(
        ConfigurationError, match=r"can't be sent from a worker process: cannot pickle"
    ) as caught:
        next(batches)
    assert f"what {name}" in str(caught.value)
    assert "returned for the batch that begins with record 16 can't" in str(caught.value)


def open_here(batch):
    return open(__file__)


def test_an_open_file_is_not_sent_back(ref):
    loader = ref.stream().batch(8).map(open_here).prefetch(2, workers=1)
    with pytest.raises(ConfigurationError, match=r"map\(open_here\) returned .* 'TextIOWrapper' object"):
        next(iter(loader))


@pytest.mark.parametrize("mode", ["r", "w", "rb"])
def test_a_file_that_is_open_is_named(ref, tmp_path, mode):
    (tmp_path / "file").write_text("some text")
    before = set(psutil.Process().children())
    with (tmp_path / "file").open(mode) as file:
        loader = ref.stream().map(lambda record: (record, file)[0]).batch(8)
        with pytest.raises(ConfigurationError, match=r"map=<function.*can't be sent .*cannot pickle '"):
            next(iter(loader.prefetch(2, workers=2)))
    assert set(psutil.Process().children()) <= before


def test_the_streams_of_the_process_are_sent(ref):
    output = sys.__stderr__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", output)
        loader = ref.stream().batch(8).map(lambda batch: (batch, output)[0])
        assert len(list(loader.prefetch(2, workers=1))) == 13


# What is sent to them.


@pytest.mark.parametrize(
    ("part", "mode", "is_sent"),
    [
        (np.asarray, "r", False), (lambda array: array[3:, ::2].T, "r", False),
        (lambda array: array, "r+", False), (lambda array: array, "c", True),
        (lambda array: array.view(np.recarray), "r", True), (np.array, "r", True),
    ],
    ids=["array", "part of it", "map", "copy on write", "of another class", "copy"],
)  # fmt: skip
def test_of_an_array_in_a_mapped_file_only_the_place_is_sent(tmp_path, part, mode, is_sent):
    np.save(tmp_path / "x.npy", np.arange(10_000).reshape(100, 100))
    array = part(np.load(tmp_path / "x.npy", mmap_mode=mode))
    sent = pickled({"x": array}, stays_here=True)
    assert (len(sent) > array.nbytes) == is_sent
    found = pickle.loads(sent)["x"]
    assert np.array_equal(found, array)
    assert type(found) is (type(array) if is_sent else np.ndarray)
    assert isinstance(found.base, np.memmap) != is_sent
    assert len(pickled({"x": array}, stays_here=False)) > array.nbytes


@pytest.mark.parametrize("name", ["map", "random_map", "worker_init", "collate", "source"])
def test_what_cannot_be_sent_is_named(ref, name):
    lock = threading.Lock()

    def locked(given, *_):
        return (given, lock)[0]

    before = set(psutil.Process().children())
    options = {"worker_init": locked} if name == "worker_init" else {}
    stream, batch = ref.stream(), {"collate": locked} if name == "collate" else {}
    if name in ("map", "random_map"):
        stream = getattr(stream, name)(locked)
    if name == "source":
        source = MemorySource(9)
        source.lock, name = lock, "the stream's source"
        stream = open_stream(source)
    with pytest.raises(ConfigurationError, match=rf"{name}.*can't be sent .*cannot pickle '_thread.lock'"):
        next(iter(stream.batch(8, **batch).prefetch(2, workers=2, **options)))
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_every_start_method_will_do(ref, method):
    loader = LOADERS["mapped"](ref).prefetch(2, workers=2, start_method=method)
    check_seen(seen(iter(loader)), seen(iter(LOADERS["mapped"](ref))))


def test_what_is_forked_has_what_cannot_be_sent(ref):
    lock = threading.Lock()
    loader = ref.stream().batch(8).map(lambda batch: (batch["id"].tolist(), lock)[0])
    assert list(itertools.chain(*loader.prefetch(2, workers=2, start_method="fork"))) == list(range(COUNT))


def note_number(folder, number):
    (folder / f"{number}-{os.environ.get('OMP_NUM_THREADS')}").touch()


def test_worker_init_is_called_first_in_each_with_its_number(ref, tmp_path):
    init = functools.partial(note_number, tmp_path)
    loader = ref.stream().batch(8).prefetch(2, workers=2, worker_init=init, worker_threads=3)
    before = os.environ.get("OMP_NUM_THREADS")
    for _ in range(2):
        next(iter(loader))
    until = time.monotonic() + 100
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-3", "1-3"]
    assert os.environ.get("OMP_NUM_THREADS") == before


def refuse(number):
    raise LookupError(f"no device for worker {number}")


def test_a_worker_init_that_raises_is_an_error(ref):
    before = set(psutil.Process().children())
    batches = iter(ref.stream().batch(8).prefetch(2, workers=1, worker_init=refuse))
    for _ in range(2):
        with pytest.raises(LookupError, match="no device for worker 0") as caught:
            next(batches)
        assert "in refuse" in caught.value.__notes__[0]
    assert set(psutil.Process().children()) <= before


def test_a_second_pool_is_refused(ref):
    with pytest.raises(ConfigurationError, match="has workers already"):
        ref.stream().batch(8).prefetch(2, workers=1).prefetch(2, workers=1)
    with pytest.raises(ConfigurationError, match="call prefetch last"):
        ref.stream().prefetch(2, workers=1).map(doubled)


# Memory.


@pytest.mark.parametrize("is_mapped", [False, True])
def test_batches_are_ones_own(tmp_path, is_mapped):
    storage = yogadl.open_storage(tmp_path)
    wanted = np.repeat(np.arange(300, dtype=np.float32), 3000).reshape(300, 3000)
    storage.submit({"id": np.arange(300), "x": wanted}, "set", "1")
    loader = storage.fetch("set", "1").stream(shuffle=True).batch(4, epochs=4)
    loader = (loader.map(half_x) if is_mapped else loader).prefetch(4, workers=2, start_method="fork")
    kept = []
    for batch in loader:
        assert all(array.flags.writeable and array.flags.c_contiguous for array in batch.values())
        kept.append(batch)
        if len(kept) % 3:
            batch["x"][:] = -1  # nobody else sees it
    for number, batch in enumerate(kept, 1):
        assert np.array_equal(batch["x"], np.full((4, 3000), -1) if number % 3 else wanted[batch["id"]])
        if is_mapped:
            assert np.array_equal(batch["half"], wanted[batch["id"]] / 2)
    assert len(kept) == 300


TREES = {
    "nothing": lambda batch: {},
    "numbers": lambda batch: [1, 2.5, "three", None, batch["id"][0]],
    "turned": lambda batch: {"x": np.repeat(batch["x"], 5000, axis=1).T},
    "every other": lambda batch: np.repeat(batch["x"], 5000, axis=1)[:, ::-2],
    "dates": lambda batch: np.arange(9000).astype("datetime64[s]") + np.timedelta64(int(batch["id"][0]), "s"),
    "many arrays": lambda batch: [np.full(5000, number) for number in range(40)],
    "small and large": lambda batch: [np.zeros(0), np.ones(3), np.ones((300, 300)), np.arange(4)],
    "twice the same": lambda batch: (batch["x"], batch["x"]),
    "large texts": lambda batch: ["x" * 100_000] * 2 + [b"y" * 70_000],
    "records": lambda batch: np.zeros(9000, [("a", "i4"), ("b", "f8")]),
    "objects": lambda batch: np.array([{"a": 1}, None], object),
    "big-endian": lambda batch: np.arange(9000, dtype=">i4"),
    "views": lambda batch: [
        view
        for size in (0, 6, 60_000)
        for view in (memoryview(bytes(size)), memoryview(bytearray(range(6)) * (size // 6)))
    ],
    "typed views": lambda batch: [memoryview(batch["x"]), memoryview(np.ones((3, 9000))).toreadonly()],
}


def tree_of(batch):
    """Return a tree of each kind, by turns."""
    return list(TREES.values())[batch["id"][0] // 2 % len(TREES)](batch)


def test_any_tree_of_arrays_comes_back(ref):
    alone = ref.stream().batch(2).map(tree_of)
    loader = alone.prefetch(2, workers=2, start_method="fork")
    for _ in range(2):
        for found, wanted in zip(loader, alone, strict=True):
            assert_same(found, wanted)


SMALLER = {
    "_core.memory.JOINED_BYTES": 2**6,
    "_stream.worker._SMALL_BYTES": 2**8,
    "_stream.workers._CHUNK_BYTES": 2**11,
    "_stream.items.RECORDS_BYTES": 2**11,
}


@pytest.mark.parametrize("start_method", ["fork"])  # which has the constants as they are here
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("kind", ["fixed", "bytes", "str", "array"])
def test_values_of_sizes_around_the_constants_come_back(tmp_path, kind, mapped, start_method):
    sizes = [size for limit in SMALLER.values() for size in around(limit)] + around(16 * 4096)
    wanted = rows_of(sizes, 17) if kind == "fixed" else records_of(kind, [*sizes, 3, 0, *sizes[::-1]])
    storage = yogadl.open_storage(tmp_path, mapped=mapped)
    storage.submit(wanted, "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True)
    with scaled(SMALLER):
        for made in (stream, stream.batch(1), stream.batch(3), stream.batch(3).map(dict)):
            for found, one in zip(made.prefetch(2, workers=2, start_method=start_method), made, strict=True):
                assert_same(found, one)


@pytest.mark.parametrize("stages", [(), (dict,)], ids=["plain", "with a function"])
def test_long_strings_come_back_as_lists(tmp_path, stages):
    texts = ["\udc80" * 3000, "", "a" * 9000, "\xe9" * 5000, "\0" * 6000]
    wanted = {"text": texts * 3, "raw": [text.encode("utf-8", "surrogatepass") for text in texts] * 3}
    storage = yogadl.open_storage(tmp_path)
    storage.submit(wanted, "set", "1")
    ref = storage.fetch("set", "1")
    both = yogadl.concat([ref, ref[:4]])
    for stream in (ref.stream(shuffle=True), both.stream(shuffle=True), yogadl.from_source(wanted).stream()):
        for loader in (stream.batch(4), stream.batch(7), stream):
            for stage in stages:
                loader = loader.map(stage)
            method = "forkserver" if loader is stream else "fork"
            found = list(loader.prefetch(2, workers=2, start_method=method))
            assert len(found) >= 3
            for one, other in zip(found, loader, strict=True):
                assert one == other
                assert list(map(type, one.values())) == list(map(type, other.values()))


@pytest.mark.parametrize("count", [15, 16, 17, 48])
def test_counts_around_the_constants_come_back(count):
    stream = open_stream(MemorySource(count))
    with scaled({"_stream.items.MOST_RECORDS": 16}):
        for made in (stream.map(dict), stream):
            loader = made.prefetch(2, workers=2, start_method="fork")
            assert [int(one["id"]) for one in loader] == list(range(count))


# Which rows.


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    "options", [{}, PADDED, {"shard_rank": 1, "num_shards": 2, "drop_shard_remainder": True}]
)
def test_pieces_are_the_rows_of_chunks(drop, across, options):
    for count, size, position, items in itertools.product((1, 2, 7, 31), (1, 3, 8), (0, 1, 5), (1, 2, 9)):
        run: Run = open_stream(MemorySource(count), **options).run
        start = Point(2, min(position, count))
        cut = Cut(size, drop, 3, across)
        wanted = [rows.indices for rows in run.chunks(cut, start, 5)]
        found = []
        for pieces in pieces_of(run.shard, cut, start, 5, items):
            assert 0 < count_of(pieces) <= size * items
            found += [run.rows(*piece).indices for piece in pieces]
        assert np.concatenate([[], *found]).tolist() == np.concatenate([[], *wanted]).tolist()
    assert found  # the last are of 31 records


class Trap:
    """An object that must be destroyed only by the process that made it."""

    def __init__(self, path):
        self.path, self.itself, self.pid = path, self, os.getpid()

    def __del__(self):
        if os.getpid() != self.pid:
            self.path.touch()


def collecting(batch):
    gc.collect()
    return batch


def test_a_forked_worker_leaves_the_garbage_of_the_process_that_it_is_forked_from(ref, tmp_path):
    gc.disable()
    try:
        Trap(tmp_path / "trap")
        loader = ref.stream().batch(8).map(collecting).prefetch(2, workers=2, start_method="fork")
        assert sum(len(batch["id"]) for batch in loader) == COUNT
    finally:
        gc.enable()
        gc.collect()
    assert not (tmp_path / "trap").exists()
