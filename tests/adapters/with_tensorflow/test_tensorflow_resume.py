"""Checkpoints of tf.data iterators over a stream: exact, in new processes, reading nothing twice."""

import itertools
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from inside import set_constants
from programs import programs

import yogadl
from yogadl.adapters import tensorflow as adapter
from yogadl.errors import ConfigurationError, CursorError

RECORDS = 1003


class Watched:
    """Records that note which of them were read."""

    def __init__(self, count=RECORDS):
        self.count = count
        self.read = []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read.append(index)
        return {"id": np.int64(index), "v": np.arange(index % 3)}


def make(source, size, *, repeat=3, **options):
    stream = yogadl.from_source(source, fingerprint="watched").stream(shuffle=True, **options)
    return stream, adapter.make_tf_dataset(stream, size).repeat(repeat).prefetch(2)


def saved(iterator, folder):
    return tf.train.Checkpoint(iterator=iterator).write(str(folder / "c"))


def restored(iterator, path):
    tf.train.Checkpoint(iterator=iterator).read(path)
    return iterator


def flat(elements):
    return [int(i) for element in elements for i in np.atleast_1d(element["id"].numpy())]


@pytest.mark.parametrize(
    ("size", "done", "options"),
    [
        *((None, done, {}) for done in (0, 1, 16, 17)),
        *((64, done, {}) for done in (0, 1, 15, 16, 17, 40)),
        (64, 8, {"start_offset": 700}),
    ],
)
def test_a_restored_iterator_goes_on_exactly(tmp_path, size, done, options):
    """Also where TensorFlow has another seed."""
    tf.random.set_seed(1)
    stream, dataset = make(Watched(), size, **options)
    iterator = iter(dataset)
    first = flat(itertools.islice(iterator, done))
    path = saved(iterator, tmp_path)
    rest = flat(iterator)
    tf.random.set_seed(2)
    iterator = iter(make(Watched(), size, **options)[1])
    tf.train.Checkpoint(iterator=iterator).read(path).assert_consumed()
    assert flat(iterator) == rest
    assert first + rest == [int(i) for epoch in range(3) for i in stream.indices(epoch)]


@pytest.mark.parametrize(("size", "again"), [(None, 1024), (64, 0)])
def test_restoring_reads_nothing_that_was_skipped(tmp_path, size, again):
    """Single records are gathered by the thousand: some of those that were delivered are read again."""
    records, done = 5003, 4480
    _, dataset = make(Watched(records), size, repeat=1)
    iterator = iter(dataset)
    first = flat(next(iterator) for _ in range(done if size is None else done // size))
    path = saved(iterator, tmp_path)
    source = Watched(records)
    _, dataset = make(source, size, repeat=1)
    source.read.clear()
    iterator = restored(iter(dataset), path)
    rest = flat(iterator)
    assert sorted(first + rest) == list(range(records))
    assert set(source.read).isdisjoint(first[: len(first) - again])


@pytest.mark.parametrize(
    "other",
    [
        {"size": 63},
        {"shuffle_seed": 1},
        {"shard_rank": 1, "num_shards": 2},
        {"start_offset": 64},
        {"count": RECORDS + 1},
    ],
    ids=str,
)
def test_a_foreign_checkpoint_is_an_error_and_not_other_records(tmp_path, other):
    iterator = iter(make(Watched(), 64)[1])
    next(iterator)
    path = saved(iterator, tmp_path)
    size, count = other.pop("size", 64), other.pop("count", RECORDS)
    iterator = iter(make(Watched(count), size, **other)[1])
    with pytest.raises(CursorError, match="of another dataset, order, shard, start or batch size"):
        restored(iterator, path)


def test_a_foreign_checkpoint_of_combined_datasets_is_an_error_too(tmp_path, monkeypatch):
    set_constants(monkeypatch, MOST_EPOCHS=10_000)

    def zipped(seed):
        dataset = make(Watched(), 64, shuffle_seed=seed)[1]
        return iter(tf.data.Dataset.zip((dataset, tf.data.Dataset.range(100))))

    iterator = zipped(0)
    next(iterator)
    path = saved(iterator, tmp_path)
    with pytest.raises(tf.errors.OpError, match=r"CursorError.*another dataset"):
        list(itertools.islice(restored(zipped(1), path), 4))  # two of them may wait in the last prefetch


@pytest.mark.parametrize(("repeat", "read"), [(1, 1), (2, 32)])
def test_an_iterator_after_a_restored_one_reads_the_epoch_after(tmp_path, repeat, read):
    """Within an epoch, and at the end of all."""
    stream, dataset = make(Watched(), 64, repeat=repeat)
    list(dataset)
    iterator = iter(dataset)
    first = flat(itertools.islice(iterator, read))
    assert len(first) == min(64 * read, repeat * RECORDS)
    path = saved(iterator, tmp_path)
    dataset = make(Watched(), 64, repeat=repeat)[1]
    epochs = [int(i) for epoch in range(repeat, 3 * repeat) for i in stream.indices(epoch)]
    assert first + flat(restored(iter(dataset), path)) + flat(dataset) == epochs


def test_a_finite_repeat_that_is_iterated_over_again_skips_no_epoch():
    stream, dataset = make(Watched(), 64, repeat=2)
    iter(dataset)  # which is never read
    found = [flat(dataset) for _ in range(2)]
    expected = [[int(i) for epoch in epochs for i in stream.indices(epoch)] for epochs in ((0, 1), (2, 3))]
    assert found == expected


def batched():
    """Return batches of 100 of 1003 records: the last one of an epoch is short."""
    dataset = make(Watched(), None, repeat=1)[1]
    return dataset.map(lambda record: {"id": record["id"]}).batch(100).repeat()


def written_in_a_thread(iterator, folder):
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    path = checkpoint.write(str(folder / "c"), tf.train.CheckpointOptions(enable_async=True))
    checkpoint.sync()
    return path


@pytest.mark.parametrize(
    ("begin", "write"),
    [(iter, written_in_a_thread), (lambda dataset: dataset.as_numpy_iterator(), saved)],
    ids=["in a thread", "of arrays"],
)
def test_a_checkpoint_has_the_epoch_however_it_is_written(tmp_path, begin, write):
    iterator = begin(batched())
    for _ in range(11):
        next(iterator)
    path = write(iterator, tmp_path)
    expected = np.asarray(next(iterator)["id"]).tolist()
    assert np.asarray(next(restored(begin(batched()), path))["id"]).tolist() == expected


def test_a_symbolic_checkpoint_is_refused_by_name(tmp_path):
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    iterator = iter(make(Watched(), 64)[1].with_options(options))
    assert len(flat(iterator)) == 3 * RECORDS
    with pytest.raises(ConfigurationError, match=r"experimental_symbolic_checkpoint.*leave the option out"):
        saved(iterator, tmp_path)


def test_an_epoch_far_away_is_found(tmp_path, monkeypatch):
    set_constants(monkeypatch, TOKENS=50)
    ref = yogadl.from_source({"id": np.arange(3)}, fingerprint="three")
    stream = ref.stream(shuffle=True)
    iterator = iter(adapter.make_tf_dataset(stream, 3).repeat())
    for _ in range(500):
        next(iterator)
    path = saved(iterator, tmp_path)
    iterator = restored(iter(adapter.make_tf_dataset(stream, 3).repeat()), path)
    assert [flat([next(iterator)]) for _ in range(3)] == [stream.indices(e).tolist() for e in range(500, 503)]


PROCESS = """
    import json, sys
    import numpy as np
    import tensorflow as tf
    import yogadl
    from yogadl.adapters import tensorflow as adapter

    root, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    stream = yogadl.open_storage(root).fetch("set", "1").stream(shuffle=True, shuffle_seed=5)
    dataset = adapter.make_tf_dataset(stream, 32).map(lambda batch: batch).prefetch(4).repeat(3)
    iterator = iter(dataset)
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    manager.restore_or_initialize()
    found = [i for _ in range(count) for i in next(iterator)["id"].numpy().tolist()]
    manager.save()
    print(json.dumps(found))
    """


def test_three_processes_one_after_another_read_each_record_of_each_epoch_once(tmp_path):
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit({"id": np.arange(500)}, "set", "1")
    stream = storage.fetch("set", "1").stream(shuffle=True, shuffle_seed=5)
    found = []
    for count in (12, 20, 16):  # of 16 batches an epoch
        given = (tmp_path / "caches", tmp_path / "checkpoints", count)
        found += programs("tensorflow").start(PROCESS, *given).answer()
    assert found == [int(i) for epoch in range(3) for i in stream.indices(epoch)]


LEFT_OPEN = """
    import time
    import numpy as np, tensorflow as tf, yogadl
    from yogadl.adapters import tensorflow as adapter

    class Slow:
        def __len__(self):
            return 100_000
        def __getitem__(self, index):
            return np.full(100, index)

    def slow(i):
        time.sleep(0.001)
        return i

    def of(i):
        return tf.ensure_shape(tf.numpy_function(slow, [i], tf.int64, stateful=False), [])

    ref = yogadl.from_source(Slow(), fingerprint="slow")
    iterators = [iter(adapter.make_tf_dataset(ref.stream(), 64).repeat().prefetch(100)) for _ in range(3)]
    for iterator in iterators:
        next(iterator)
    source = adapter.source(tf.data.Dataset.range(1_000_000).map(of))
    next(source.chunks())
    print("end")
    """


def test_the_interpreter_exits_while_iterators_read_ahead_and_a_pipeline_is_being_read():
    command = [sys.executable, "-c", textwrap.dedent(LEFT_OPEN)]
    assert "end" in subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize(("size", "drop", "position"), [(None, False, 100), (16, False, 100), (16, True, 96)])
def test_a_cursor_that_leaves_nothing_of_its_epoch_goes_on_with_the_next(size, drop, position, caplog):
    ref = yogadl.from_source({"id": np.arange(100)})
    stream = ref.stream(shuffle=True, cursor=ref.stream(shuffle=True).cursor(position))
    kept = position if drop else 100
    assert flat(adapter.make_tf_dataset(stream, size, drop).repeat(2)) == stream.indices(1)[:kept].tolist()
    (told,) = caplog.records
    assert "skip_finished_epoch=True" in told.message
    dataset = adapter.make_tf_dataset(stream, size, drop, skip_finished_epoch=True)
    found = flat(dataset.repeat().take(100 if size is None else 7 - drop))
    assert found == stream.indices(1)[:kept].tolist()
    within = ref.stream(shuffle=True, cursor=stream.cursor(40, epoch=2))
    rest = flat(adapter.make_tf_dataset(within, size, drop, skip_finished_epoch=True))
    assert rest == within.indices(2)[: 48 if drop else 60].tolist()
    assert len(caplog.records) == 1


def test_a_stateful_random_operation_can_not_be_saved_and_the_error_names_what_can(tmp_path):
    dataset = make(Watched(20), 4)[1].map(lambda batch: (batch["id"], tf.random.uniform([])))
    iterator = iter(dataset)
    assert len(next(iterator)[0]) == 4
    with pytest.raises(ConfigurationError, match=r"stateless operations.*random_map.*PyDataset.*seed="):
        saved(iterator, tmp_path)
    assert len(next(iterator)[0]) == 4  # reading goes on


def test_random_numbers_of_random_map_go_on_after_a_restored_checkpoint(tmp_path):
    def noisy(record, rng):
        return {"id": record["id"], "noise": rng.random()}

    def batches():
        source = yogadl.from_source({"id": np.arange(50)}, fingerprint="noisy")
        stream = source.stream(shuffle=True, shuffle_seed=3).random_map(noisy)
        return iter(adapter.make_tf_dataset(stream, 4).repeat(2))

    iterator = batches()
    for _ in range(15):  # into the second epoch
        next(iterator)
    path = saved(iterator, tmp_path)
    expected = next(iterator)["noise"].numpy()
    iterator = restored(batches(), path)
    assert np.array_equal(next(iterator)["noise"], expected)
