"""A stream as a tf.data.Dataset: which records, in which order, in which form."""

import json

import numpy as np
import pytest
import tensorflow as tf
from failing import check_error, failing
from inside import BatchMemory
from placed import PADDED, check_places, placed
from trees import JSON_VALUES

import yogadl
from yogadl.adapters import tensorflow as adapter
from yogadl.errors import ConfigurationError, UnsupportedDataError

RECORDS = 103


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit({"id": np.arange(RECORDS), "image": np.arange(RECORDS * 6).reshape(-1, 2, 3)}, "set", "1")
    return storage.fetch("set", "1")


def ids(dataset):
    """Return the ids of an epoch, whether in batches or not."""
    return [int(i) for element in dataset for i in np.atleast_1d(element["id"].numpy())]


@pytest.mark.parametrize(
    ("size", "ranks", "remainder"),
    [
        (None, 1, "uneven"), (None, 3, "drop"), (None, 200, "pad"), (1, 3, "pad"), (1, 200, "uneven"),
        (10, 1, "pad"), (10, 3, "uneven"), (10, 200, "drop"), (103, 1, "drop"), (103, 3, "pad"),
        (1000, 1, "uneven"), (1000, 3, "drop"), (1000, 200, "pad"),
    ],
)  # fmt: skip
def test_every_epoch_is_the_streams(ref, size, ranks, remainder):
    rank = ranks - 1
    stream = ref.stream(
        shuffle=True,
        shuffle_seed=3,
        shard_rank=rank,
        num_shards=ranks,
        drop_shard_remainder=remainder == "drop",
        pad_shard_remainder=remainder == "pad",
    )
    dataset = adapter.make_tf_dataset(stream, size)
    for epoch in range(3):
        assert ids(dataset) == stream.indices(epoch).tolist()


def test_batches_stay_as_they_are_however_long_they_are_held(tmp_path):
    records = 1000
    images = np.random.default_rng(6).integers(0, 256, (records, 64, 48), np.uint8)
    odd = images.reshape(records, -1)[:, 1:]
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"image": images, "odd": odd, "id": np.arange(records)}, "d", "1")
    dataset = adapter.make_tf_dataset(storage.fetch("d", "1").stream(shuffle=True), batch_size=64)
    batches, views = [], []
    for batch in dataset.repeat(3):
        batches.append(batch)
        views.append((batch["id"].numpy(), np.asarray(batch["image"]), tf.identity(batch["odd"])[:, 1:]))
        if len(batches) > 20:  # let go of some, so that memory is used again while others are held
            del batches[:5]
    assert len(views) == 48
    for batch in batches:
        assert np.array_equal(batch["image"], images[batch["id"]])
    for chosen, image, rest in views:
        assert np.array_equal(image, images[chosen])
        assert np.array_equal(rest, odd[chosen, 1:])


def test_tensors_hold_their_memory_without_a_copy(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"x": np.arange(256 * 2048, dtype=np.int32).reshape(256, 2048)}, "d", "1")
    made = []

    class Memory(BatchMemory):
        def array(self, shape, dtype):
            found = super().array(shape, dtype)
            made.append(found.ctypes.data)
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("yogadl.adapters.tensorflow._loader.BatchMemory", Memory)
        dataset = adapter.make_tf_dataset(storage.fetch("d", "1").stream(), batch_size=64)
        found = [np.from_dlpack(batch["x"]).ctypes.data for batch in dataset]
    assert len(found) == 4
    assert set(found) <= set(made)


def test_iterators_side_by_side_read_epochs_of_their_own(ref):
    stream = ref.stream(shuffle=True)
    dataset = adapter.make_tf_dataset(stream)
    pairs = list(zip(iter(dataset), iter(dataset), strict=True))
    assert {int(a["id"]) for a, _ in pairs} == {int(b["id"]) for _, b in pairs} == set(range(RECORDS))
    orders = [[int(pair[i]["id"]) for pair in pairs] for i in (0, 1)]
    assert sorted(orders) == sorted([stream.indices(0).tolist(), stream.indices(1).tolist()])


def test_every_dataset_counts_for_itself(ref):
    stream = ref.stream(shuffle=True)
    assert ids(adapter.make_tf_dataset(stream)) == ids(adapter.make_tf_dataset(stream))
    next(iter(stream))  # so does the stream
    assert ids(adapter.make_tf_dataset(stream)) == stream.indices(0).tolist()


def test_the_seed_of_tensorflow_changes_nothing(ref):
    stream = ref.stream(shuffle=True)
    for seed in (1, 2):
        tf.random.set_seed(seed)
        dataset = adapter.make_tf_dataset(stream)
        assert [ids(dataset), ids(dataset)] == [stream.indices(0).tolist(), stream.indices(1).tolist()]


def test_one_order_for_all_epochs(ref):
    stream = ref.stream(shuffle=True, skip_shuffle_at_epoch_end=True)
    dataset = adapter.make_tf_dataset(stream)
    assert ids(dataset) == ids(dataset) == stream.indices(0).tolist()


@pytest.mark.filterwarnings("ignore:there is no batch to read")
@pytest.mark.parametrize(
    ("size", "drop", "count", "rows"),
    [(None, False, 35, []), (10, False, 4, [None]), (10, True, 3, [10]), (50, True, 0, [50])],
)
def test_cardinality_and_shapes_are_known(ref, size, drop, count, rows):
    stream = ref.stream(shard_rank=0, num_shards=3)
    dataset = adapter.make_tf_dataset(stream, size, drop)
    assert int(dataset.cardinality()) == count == len(list(dataset))
    assert dataset.element_spec["image"].shape.as_list() == [*rows, 2, 3]
    few = adapter.make_tf_dataset(ref.fields("id").stream(shard_rank=0, num_shards=3), size, drop)
    assert few.element_spec == {"id": tf.TensorSpec(rows, tf.int64)}
    assert len(list(few)) == count


@pytest.mark.parametrize("size", [None, 10])
@pytest.mark.parametrize("offset", [1, 20, 34, 35, 40])
def test_a_stream_that_begins_later_has_a_shorter_first_epoch(ref, size, offset):
    stream = ref.stream(
        start_offset=offset, shuffle=True, shard_rank=1, num_shards=3, drop_shard_remainder=True
    )
    dataset = adapter.make_tf_dataset(stream, size)
    items = [-(-stream.shard.own(g) // (size or 1)) for g in (0, stream.start.position)]
    is_known = items[0] == items[1]
    assert int(dataset.cardinality()) == (items[0] if is_known else tf.data.UNKNOWN_CARDINALITY)
    first = stream.start.epoch
    for epoch in range(first, first + 3):
        assert ids(dataset) == stream.indices(epoch).tolist()


def test_a_number_of_repetitions_passes_over_an_epoch_of_which_nothing_is_left(ref):
    stream = ref.stream(shuffle=True, cursor=ref.stream(shuffle=True).cursor(delivered=RECORDS))
    for size in (None, 10):
        dataset = adapter.make_tf_dataset(stream, size)
        assert ids(dataset.repeat(3)) == [int(i) for epoch in (1, 2) for i in stream.indices(epoch)]


def test_arrays_without_a_cache_work_as_well():
    ref = yogadl.from_source({"id": np.arange(20), "text": [f"ä{i}" for i in range(20)]})
    dataset = adapter.make_tf_dataset(ref.stream(), 6)
    assert [t.decode() for batch in dataset for t in batch["text"].numpy()] == [f"ä{i}" for i in range(20)]


def test_varying_leaves_are_batched_as_tf_data_does(tmp_path):
    def of(i):
        n = i % 4
        return {
            "a": tf.fill([n, 3], i),
            "b": tf.fill([n, n + 1], i),
            "c": tf.fill([2, n], i),
            "d": tf.fill([n], "x"),
        }

    spec = {
        "a": tf.TensorSpec([None, 3], tf.int64),
        "b": tf.TensorSpec([None, None], tf.int64),
        "c": tf.TensorSpec([2, None], tf.int64),
        "d": tf.TensorSpec([None], tf.string),
    }
    plain = (
        tf.data.Dataset.range(50)
        .map(of)
        .map(lambda e: {k: tf.ensure_shape(e[k], s.shape) for k, s in spec.items()})
    )
    assert plain.element_spec == spec
    storage = yogadl.open_storage(tmp_path)
    storage.submit(plain, "set", "1")
    ours = adapter.make_tf_dataset(storage.fetch("set", "1").stream(), 8)
    theirs = plain.ragged_batch(8)
    assert ours.element_spec == theirs.element_spec
    for one, other in zip(ours, theirs, strict=True):
        for x, y in zip(*(tf.nest.flatten(e, expand_composites=True) for e in (one, other)), strict=True):
            assert x.numpy().tolist() == y.numpy().tolist()


def test_ragged_tensors_get_one_more_dimension(tmp_path):
    rows = [tf.ragged.constant([[1] * i, [], [2]]) for i in range(10)]
    spec = tf.RaggedTensorSpec([None, None], tf.int32, 1)
    plain = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec)
    storage = yogadl.open_storage(tmp_path)
    storage.submit(plain, "set", "1")
    ours = adapter.make_tf_dataset(storage.fetch("set", "1").stream(), 4)
    assert ours.element_spec == plain.batch(4).element_spec
    assert [b.to_list() for b in ours] == [b.to_list() for b in plain.batch(4)]


@pytest.mark.parametrize("size", [None, 2])
def test_values_without_elements_come_back(size):
    # tf.data's own unbatch crashes the process at them.
    ref = yogadl.from_source({"id": np.arange(5), "none": np.zeros((5, 2, 0))})
    dataset = adapter.make_tf_dataset(ref.stream(), size)
    assert dataset.element_spec["none"].shape.as_list()[-2:] == [2, 0]
    assert ids(dataset) == list(range(5))


def test_values_of_varying_rank_make_records_but_no_batches():
    ref = yogadl.from_source([np.zeros((1,) * (i % 3)) for i in range(20)])
    assert [x.shape.rank for x in adapter.make_tf_dataset(ref.stream())] == [i % 3 for i in range(20)]
    with pytest.raises(tf.errors.OpError, match=r"UnsupportedDataError: the values of field.*differ"):
        list(adapter.make_tf_dataset(ref.stream(), 4))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ([], tf.int64), ([2, 0], tf.int64), ([2], tf.bfloat16), ([2, 3], tf.bfloat16), ([], tf.bool),
        ([2, 3], tf.bool), ([], tf.string), ([2], tf.string), ([2, 0], tf.string),
    ],
)  # fmt: skip
def test_values_of_unknown_rank_that_have_one_shape_can_be_batched(tmp_path, shape, dtype):
    records = [
        {"x": tf.as_string(tf.fill(shape, i)) if dtype == tf.string else tf.cast(tf.fill(shape, i), dtype)}
        for i in range(7)
    ]
    signature = {"x": tf.TensorSpec(None, dtype)}
    plain = tf.data.Dataset.from_generator(lambda: iter(records), output_signature=signature)
    storage = yogadl.open_storage(tmp_path)
    storage.submit(plain, "set", "1")
    ours = adapter.make_tf_dataset(storage.fetch("set", "1").stream(), 3)
    theirs = plain.batch(3)
    assert ours.element_spec == theirs.element_spec
    found, expected = list(ours), list(theirs)
    assert [batch["x"].shape for batch in found] == [batch["x"].shape for batch in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["x"].numpy().tolist() == other["x"].numpy().tolist()


@pytest.mark.parametrize(
    ("stream", "error", "words"),
    [
        (
            yogadl.from_source({"when": np.zeros(4, "datetime64[s]"), "x": np.arange(4)}).stream(),
            UnsupportedDataError,
            r"'when'.*datetime64.*int64",
        ),
        (yogadl.Stream(lambda: iter([1]), 1), ConfigurationError, "output_types"),
    ],
    ids=["dtype", "stream of one's own"],
)
def test_what_has_no_tensors_is_refused_by_name(stream, error, words):
    with pytest.raises(error, match=words):
        adapter.make_tf_dataset(stream)


def in_a_graph(make):
    with tf.Graph().as_default():
        make()


@pytest.mark.parametrize(
    ("where", "says"),
    [
        (in_a_graph, "graph mode: leave out"),
        (lambda make: tf.function(make, autograph=False)(), "make the dataset outside"),
    ],
    ids=["graph", "function"],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda storage: adapter.make_tf_dataset(yogadl.from_source(np.arange(3)).stream()),
        lambda storage: storage.submit(tf.data.Dataset.range(3), "set", "1"),
        lambda storage: tf.data.Dataset.range(3).apply(adapter.cache(storage, "set", "1")),
    ],
    ids=["make_tf_dataset", "submit", "cache"],
)
def test_where_tensorflow_does_not_execute_eagerly_the_error_says_what_to_do(tmp_path, make, where, says):
    with pytest.raises(ConfigurationError, match=f"needs eager execution.*{says}"):
        where(lambda: make(yogadl.open_storage(tmp_path)))


@pytest.mark.parametrize("size", [None, 10])
def test_a_ready_dataset_can_be_iterated_over_inside_a_function(ref, size):
    stream = ref.stream(shuffle=True)
    dataset = adapter.make_tf_dataset(stream, size)

    @tf.function
    def epoch():
        found = tf.zeros([0], tf.int64)
        for element in dataset:
            tf.autograph.experimental.set_loop_options(shape_invariants=[(found, tf.TensorShape([None]))])
            found = tf.concat([found, tf.reshape(element["id"], [-1])], 0)
        return found

    for number in range(3):
        assert epoch().numpy().tolist() == stream.indices(number).tolist()


class Broken:
    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index == 40:
            raise StopIteration
        return index


@pytest.mark.parametrize("size", [None, 10])
def test_a_source_that_raises_stop_iteration_does_not_end_the_epoch(size):
    dataset = adapter.make_tf_dataset(yogadl.from_source(Broken(), fingerprint="b").stream(), size)
    with pytest.raises(tf.errors.OpError, match="StopIteration"):
        list(dataset)


def test_a_users_own_stream_goes_through_a_generator():
    stream = yogadl.Stream(
        lambda: iter([(i, [i, i]) for i in range(5)]),
        5,
        (tf.int32, tf.float32),
        (tf.TensorShape([]), tf.TensorShape([2])),
    )
    dataset = adapter.make_tf_dataset(stream)
    assert dataset.element_spec == (tf.TensorSpec([], tf.int32), tf.TensorSpec([2], tf.float32))
    assert [int(x) for x, _ in dataset] == list(range(5))
    assert [x.numpy().tolist() for x, _ in adapter.make_tf_dataset(stream, 3)] == [[0, 1, 2], [3, 4]]


def test_records_are_read_with_their_places():
    stream = placed(1_003, **PADDED)
    dataset = adapter.make_tf_dataset(stream, padding_field="p").repeat(2)
    assert dataset.element_spec["p"].dtype == tf.bool
    check_places(stream, list(dataset.as_numpy_iterator()), (0, 1), "p")


def test_a_function_that_fails_is_an_error_after_the_records_before_it():
    check_error(adapter.make_tf_dataset(failing()), 1, tf.errors.OpError)


TREES = [{"id": number, "tree": JSON_VALUES[number % len(JSON_VALUES)]} for number in range(RECORDS)]


def test_json_values_are_strings_of_their_text():
    ref = yogadl.from_source(TREES, json="tree")
    texts = [json.dumps(one["tree"], ensure_ascii=False, separators=(",", ":")).encode() for one in TREES]
    batches = adapter.make_tf_dataset(ref.stream(), 7)
    assert batches.element_spec["tree"] == tf.TensorSpec([None], tf.string)
    assert [text for batch in batches for text in batch["tree"].numpy()] == texts
    records = adapter.make_tf_dataset(ref.stream())
    assert records.element_spec["tree"] == tf.TensorSpec([], tf.string)
    assert [record["tree"].numpy() for record in records] == texts
