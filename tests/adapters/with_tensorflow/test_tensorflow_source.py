"""A tf.data pipeline as a source: what it is stored as, what is refused, what is warned of."""

import collections
import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from inside import set_constants

import yogadl
from yogadl.adapters import tensorflow as adapter
from yogadl.errors import ConfigurationError, UnsupportedDataError

ONE_AND_TWO = tf.data.Dataset.range(2).repeat(8)
Point = collections.namedtuple("Point", "x y")
DTYPES = [
    tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128,
    tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
]  # fmt: skip


def stored(storage, dataset, **options):
    storage.submit(dataset, "set", "1", **options)
    return storage.fetch("set", "1")


def generated(records, signature):
    return tf.data.Dataset.from_generator(lambda: iter(records), output_signature=signature)


def assert_same_elements(found, expected):
    """Compare two datasets to the last bit: structure, spec, dtypes and values."""
    assert found.element_spec == expected.element_spec
    ours, theirs = list(found), list(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        tf.nest.assert_same_structure(one, other, expand_composites=True)
        for x, y in zip(
            tf.nest.flatten(one, expand_composites=True),
            tf.nest.flatten(other, expand_composites=True),
            strict=True,
        ):
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            assert np.asarray(x.numpy()).tolist() == np.asarray(y.numpy()).tolist()


def assert_comes_back(storage, dataset):
    ref = stored(storage, dataset)
    assert_same_elements(adapter.make_tf_dataset(ref.stream()), dataset)
    return ref


def ragged(*rows, **options):
    return tf.ragged.constant(rows, **options)


def of_dtype(dtype):
    kind = dtype.as_numpy_dtype
    records = [
        (np.asarray(i % 2, kind), np.full((i % 3, 2), i % 2, kind), np.full((1,) * (i % 4), i % 2, kind))
        for i in range(70)
    ]
    signature = (tf.TensorSpec([], dtype), tf.TensorSpec([None, 2], dtype), tf.TensorSpec(None, dtype))
    return generated(records, signature)


def strings():
    records = [
        (
            b"a\0" * i,
            np.array([b"\xff" * k for k in range(i)], object),
            np.array([[b"x"], [b""]], object),
            np.full((i % 2, i), b"q", object),
        )
        for i in range(5)
    ]
    shapes = [], [None], [2, 1], [None, None]
    return generated(records, tuple(tf.TensorSpec(shape, tf.string) for shape in shapes))


def ragged_splits(kind):
    rows = [ragged([1.0] * i, [], [2.0] * (i % 3), row_splits_dtype=kind) for i in range(20)]
    spec = tf.RaggedTensorSpec([3, None], tf.float32, 1, kind)
    return generated([(row, 7) for row in rows], (spec, tf.TensorSpec([], tf.int32)))


def ragged_of_higher_rank():
    def of(i):
        inner = tf.RaggedTensor.from_row_lengths(tf.fill([3 * i, 2], i), [i, 0, 2 * i])
        return tf.RaggedTensor.from_row_lengths(inner, [1, 0, 2])

    return generated([of(i) for i in range(5)], tf.RaggedTensorSpec([None, None, None, 2], tf.int32, 2))


def ragged_strings():
    rows = [ragged([b"a\0"] * i, [b"c"]) for i in range(5)]
    return generated(rows, tf.RaggedTensorSpec([None, None], tf.string, 1))


def ragged_with_uniform_dimensions():
    def of(i):
        rows = tf.RaggedTensor.from_row_lengths(tf.range(4 * i), [i, 0, i, 2 * i])
        return tf.RaggedTensor.from_uniform_row_length(rows, 2)

    dataset = tf.data.Dataset.range(5).map(lambda i: of(tf.cast(i, tf.int32)))
    assert dataset.element_spec.shape.as_list() == [2, 2, None]
    return dataset


def nested(i):
    return {"b": Point(i, (tf.cast(i, tf.float32), {"deep": i + 1})), "a": tf.fill([2, 3], i), "c": i}


PIPELINES = {
    **{dtype.name: functools.partial(of_dtype, dtype) for dtype in DTYPES},
    "scalar": lambda: tf.data.Dataset.range(10),
    "tuple of one": lambda: tf.data.Dataset.range(10).map(lambda x: (x,)),
    "namedtuple": lambda: tf.data.Dataset.range(10).map(lambda x: Point(x, x)),
    "dict": lambda: tf.data.Dataset.from_tensor_slices({"x": [[1, 2], [3, 4]], "y": [b"a\0", b""]}),
    "nested": lambda: tf.data.Dataset.range(100).map(nested),
    "strings": strings,
    "unknown dimensions": lambda: generated([np.zeros((2, 3))] * 4, tf.TensorSpec([None, 3], tf.float64)),
    "ragged, int32": lambda: ragged_splits(tf.int32),
    "ragged, int64": lambda: ragged_splits(tf.int64),
    "ragged of higher rank": ragged_of_higher_rank,
    "ragged strings": ragged_strings,
    "ragged with uniform dimensions": ragged_with_uniform_dimensions,
    "many chunks": lambda: tf.data.Dataset.range(6_007).map(lambda i: (i, tf.range(i % 5))),
}


@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
def test_what_a_pipeline_yields_comes_back(storage, make):
    """Structure, spec, dtype and values; what may vary may do so though all records agree."""
    assert_comes_back(storage, make())


def test_a_record_has_the_structure_of_the_element(storage):
    record = stored(storage, tf.data.Dataset.range(9).map(nested))[5]
    assert record["b"].y[1]["deep"] == 6
    assert list(record) == ["b", "a", "c"]
    rows = stored(storage, ragged_splits(tf.int64))[4][0]
    assert rows.flat_values.tolist() == [1.0] * 4 + [2.0]
    assert rows.row_splits_0.tolist() == [0, 4, 4, 5]


def test_rows_of_a_ragged_tensor_come_back_so_that_they_can_be_batched(storage):
    whole = ragged([1, 2], [], [3], [4, 5, 6])
    dataset = tf.data.Dataset.from_tensor_slices({"x": whole, "y": [1, 2, 3, 4]})
    ref = assert_comes_back(storage, dataset)
    again = adapter.make_tf_dataset(ref.stream())
    assert_same_elements(again.batch(3), dataset.batch(3))
    assert_same_elements(adapter.make_tf_dataset(ref.stream(), batch_size=3), dataset.batch(3))


def optional(x):
    return tf.experimental.Optional.from_value(x)


@pytest.mark.parametrize(
    ("of", "name", "mend"),
    [
        (lambda x: tf.sparse.from_dense([x, 0]), "SparseTensorSpec", "to_dense"),
        (optional, "OptionalSpec", "filter"),
        (tf.data.Dataset.range, "DatasetSpec", "flat_map"),
        (lambda x: None, "NoneTensorSpec", "leave the component out"),
        (lambda x: tf.bitcast(tf.cast(x, tf.int8), tf.qint8), "qint8", "cast it"),
    ],
    ids=["sparse", "optional", "dataset", "none", "quantized"],
)
def test_what_has_no_stored_form_is_refused_before_anything_is_read(storage, of, name, mend):
    def read():
        pytest.fail("the pipeline was read")

    dataset = tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec([], tf.int64))
    dataset = dataset.map(lambda x: {"fine": x, "odd": (of(x),)})
    with pytest.raises(UnsupportedDataError, match="'odd/0'") as caught:
        storage.submit(dataset, "set", "1")
    assert name in str(caught.value)
    assert mend in str(caught.value)
    assert storage.datasets() == []


def ours():
    return adapter.make_tf_dataset(yogadl.from_source(np.arange(3)).stream())


NO_END = r"never ends.*take\(n\)"
NO_SOURCES = {
    "windows": (lambda d: d.window(3), {}, "the element of the dataset is a DatasetSpec"),
    "float8": (
        lambda d: d.map(lambda x: {"q": tf.cast(x, tf.dtypes.experimental.float8_e4m3fn)}),
        {},
        r"'q'.*float8",
    ),
    "endless": (lambda d: d.repeat(), {}, NO_END),
    "endless, filtered": (lambda d: d.repeat().filter(lambda x: x > 1), {}, NO_END),
    "endless, flat map": (
        lambda d: d.repeat().flat_map(tf.data.Dataset.range).map(lambda x: x).prefetch(2), {}, NO_END,
    ),
    "endless, ours": (lambda d: ours().repeat().filter(lambda x: x > 1).map(lambda x: x), {}, NO_END),
    "empty": (lambda d: d.take(0), {}, "no records"),
    "empty, filtered": (lambda d: d.filter(lambda x: x > 5), {}, "no records"),
    "workers": (lambda d: d, {"workers": 2}, "num_parallel_calls"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "options", "says"), NO_SOURCES.values(), ids=NO_SOURCES)
def test_what_is_no_source_is_refused(storage, make, options, says):
    error = ConfigurationError if options else UnsupportedDataError
    with pytest.raises(error, match=says):
        storage.submit(make(tf.data.Dataset.range(3)), "set", "1", **options)


def test_an_endless_dataset_of_which_a_part_is_taken_is_not_endless(storage):
    dataset = tf.data.Dataset.counter().filter(lambda x: x % 2 == 0)
    for taken in (dataset.take(5), dataset.take_while(lambda x: x < 10)):
        assert [int(x) for x in stored(storage, taken)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("record", [0, 20, 1999])
def test_a_failing_pipeline_surfaces_as_its_own_error_with_the_record(storage, monkeypatch, record, varying):
    set_constants(monkeypatch, CHUNK_RECORDS=64)
    dataset = tf.data.Dataset.range(2000).map(
        lambda x: tf.debugging.check_numerics(1 / (x - record), "broken"), num_parallel_calls=2
    )
    if varying:
        dataset = dataset.map(lambda x: tf.ensure_shape(tf.fill([tf.cast(x > 0, tf.int32)], x), [None]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="broken") as caught:
        storage.submit(dataset, "set", "1")
    assert caught.value.__notes__[-1] == f"while reading record {record} of the tf.data pipeline"
    assert storage.datasets() == []


def test_a_failing_pipeline_that_does_not_fail_again_names_the_chunk(storage, monkeypatch):
    set_constants(monkeypatch, CHUNK_RECORDS=64)
    failed = []

    def once(x):
        if x == 70 and not failed:
            failed.append(x)
            raise KeyError("broken")
        return x

    dataset = tf.data.Dataset.range(100).map(
        lambda x: tf.ensure_shape(tf.numpy_function(once, [x], tf.int64), [])
    )
    with pytest.raises(tf.errors.OpError, match="broken") as caught:
        storage.submit(dataset, "set", "1")
    assert caught.value.__notes__[-1] == "while reading the records from 64 on of the tf.data pipeline"


def test_reading_is_deterministic_whatever_the_options_say(storage):
    options = tf.data.Options()
    options.deterministic = False
    dataset = tf.data.Dataset.range(500).map(lambda x: x, num_parallel_calls=8).with_options(options)
    ref = stored(storage, dataset)
    assert [int(x) for x in ref] == list(range(500))


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda d: d.batch(4), "batches"),
        (lambda d: d.shuffle(4), "shuffles"),
        (lambda d: d.repeat(2), "repeats"),
        (lambda d: d.map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])), "random"),
        (lambda d: d.map(lambda x: x, num_parallel_calls=2, deterministic=False), "order"),
        (lambda d: d.interleave(lambda x: tf.data.Dataset.range(x).shuffle(3)), "shuffles"),
        (lambda d: tf.data.Dataset.sample_from_datasets([d, d]), "sample_from_datasets"),
        (lambda d: tf.data.Dataset.choose_from_datasets([d.repeat(2), d], ONE_AND_TWO), "repeats"),
    ],
    ids=["batch", "shuffle", "repeat", "random", "deterministic", "inside", "sample", "chosen"],
)
def test_what_was_hardly_meant_is_warned_of(storage, make, word):
    with pytest.warns(UserWarning, match=f"{word}.*cache") as caught:
        storage.submit(make(tf.data.Dataset.range(8)), "set", "1")
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_warning_of_a_folder_of_images_says_what_to_write(storage, tmp_path):
    for n in range(4):
        (tmp_path / "images" / f"class{n % 2}").mkdir(parents=True, exist_ok=True)
        png = tf.io.encode_png(tf.fill([4, 4, 3], tf.cast(n, tf.uint8))).numpy()
        (tmp_path / "images" / f"class{n % 2}" / f"{n}.png").write_bytes(png)
    read = functools.partial(keras.utils.image_dataset_from_directory, tmp_path / "images", image_size=(4, 4))
    with pytest.warns(UserWarning, match="dataset to cache") as caught:
        storage.submit(read(), "set", "1")
    assert "it batches" in str(caught[0].message)
    assert "batch_size=None, shuffle=False" in str(caught[0].message)
    assert "it shuffles" in str(caught[1].message)
    assert "shuffle=False" in str(caught[1].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.submit(read(batch_size=None, shuffle=False), "set", "2")
    assert len(storage.fetch("set", "2")) == 4


def dense_and_noise(dense, *random):
    """Return a function that draws by a seed of the data, beside layers that draw in training alone."""

    def of(x):
        image = tf.fill([4, 4, 3], tf.cast(x, tf.float32))
        for layer in random:
            image = layer(image, training=False)
        return dense(image) + tf.random.stateless_normal([], tf.stack([x, 0]))

    return of


def augmented(layer):
    return lambda i: layer(tf.fill([4, 4, 3], tf.cast(i, tf.float32)), training=True)


def seeded(generator):
    return lambda i: tf.random.stateless_uniform([], generator.next()) + tf.cast(i, tf.float32)


@pytest.mark.parametrize(
    "make",
    [
        lambda: augmented(keras.layers.RandomFlip()),
        lambda: augmented(keras.layers.RandomRotation(0.1)),
        lambda: augmented(keras.layers.Dropout(0.5)),
        lambda: augmented(keras.layers.GaussianNoise(1.0)),
        lambda: augmented(keras.Sequential([keras.layers.Rescaling(2.0), keras.layers.RandomContrast(0.1)])),
        lambda: seeded(keras.random.SeedGenerator(3)),
    ],
    ids=["flip", "rotation", "dropout", "noise", "model", "seed"],
)
def test_layers_of_keras_that_draw_random_numbers_are_warned_of(storage, make):
    dataset = tf.data.Dataset.range(8).map(make())
    with pytest.warns(UserWarning, match="random numbers.*cache before it") as caught:
        storage.submit(dataset, "set", "1")
    assert len(caught) == 1


def test_the_warning_points_at_the_line_that_applies_the_cache(storage):
    with pytest.warns(UserWarning, match="shuffles") as caught:
        tf.data.Dataset.range(8).shuffle(4).apply(adapter.cache(storage, "set", "1"))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d.batch(4).map(lambda x: x + 1).unbatch(),
        lambda d: d.map(lambda x: x, num_parallel_calls=2).prefetch(2),
        lambda d: d.map(lambda x: tf.random.stateless_uniform([], (1, 2))),
        lambda d: d.enumerate().map(lambda i, x: tf.random.stateless_uniform([], tf.stack([i, x]))),
        lambda d: d.map(
            dense_and_noise(keras.layers.Dense(2), keras.layers.Dropout(0.5), keras.layers.RandomFlip())
        ),
        lambda d: tf.data.Dataset.choose_from_datasets([d, d], ONE_AND_TWO),
    ],
    ids=["unbatched", "parallel", "constant seed", "seed of the data", "layers", "chosen"],
)
def test_what_is_fine_is_not_warned_of(storage, make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.submit(make(tf.data.Dataset.range(8)), "set", "1")
