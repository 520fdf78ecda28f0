"""Streams as iterators of JAX arrays, in one process with eight devices."""

import os
import subprocess
import sys
import threading
import warnings
from collections import namedtuple

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jax_job import Counted
from placed import check_places, placed

import yogadl
from yogadl.adapters import jax as adapter
from yogadl.adapters.jax import make_jax_iterator
from yogadl.errors import ConfigurationError, UnsupportedDataError

N = 101


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    x = np.random.default_rng(0).random((N, 4), np.float32)
    storage.submit({"id": np.arange(N, dtype=np.int32), "x": x}, "d", "1")
    return storage.fetch("d", "1")


def shuffled(ref, **options):
    return ref.stream(shuffle=True, shuffle_seed=5, **options)


def mesh(*shape):
    devices = np.array(jax.devices()[: np.prod(shape)])
    return Mesh(devices.reshape(shape), ("data", "model")[: len(shape)])


def ids_of(batches):
    return [index for batch in batches for index in np.asarray(batch["id"]).tolist()]


def enabled_x64(is_enabled):
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    return enable(is_enabled)


# One device.


def test_a_batch_has_the_fields_of_the_record_as_arrays_of_jax(ref):
    batches = make_jax_iterator(ref.stream(), N, epochs=None)
    for _ in range(20):  # it may never end
        batch = next(batches)
        assert [(name, isinstance(array, jax.Array)) for name, array in batch.items()] == [
            ("id", True),
            ("x", True),
        ]
        assert batch["id"][0].item() == 0


def test_large_batches_are_right_too():
    images = np.random.default_rng(1).integers(0, 256, (40, 128, 128, 3), np.uint8)
    batches = list(make_jax_iterator(yogadl.from_source(images).stream(), 16))
    np.testing.assert_array_equal(np.concatenate(batches), images)


def test_a_batch_is_a_tree_like_the_record():
    point = namedtuple("point", "x y")
    records = [
        {"b": [np.float32(i), (np.int32(i), point(np.int8(i), np.uint8(i)))], "a": np.bool_(i % 2)}
        for i in range(5)
    ]
    batch = next(make_jax_iterator(yogadl.from_source(records).stream(), 5))
    assert list(batch) == ["b", "a"]
    first, (second, third) = batch["b"]
    assert isinstance(batch["b"], list)
    assert type(third).__name__ == "point"
    for array, dtype in ((first, "float32"), (second, "int32"), (third.x, "int8"), (third.y, "uint8")):
        assert array.dtype == dtype
        assert array.tolist() == [0, 1, 2, 3, 4]


def test_keys_of_several_kinds_stay_as_they_are():
    batch = next(make_jax_iterator(yogadl.from_source([{1: np.int8(2), "b": np.int8(3)}]).stream(), 1))
    assert {key: array.tolist() for key, array in batch.items()} == {1: [2], "b": [3]}


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4", "uint4"]


@pytest.mark.parametrize("name", DTYPES + SMALL)
def test_a_dtype_arrives_as_it_is(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    column = np.arange(6).reshape(3, 2).astype(dtype)
    batch = next(make_jax_iterator(yogadl.from_source({"x": column}).stream(), 3))
    assert batch["x"].dtype == dtype
    assert np.asarray(batch["x"]).tobytes() == column.tobytes()


@pytest.mark.parametrize("name", ["int64", "uint64", "float64", "complex128"])
def test_wide_types_arrive_as_they_are_where_jax_may_have_them(name):
    column = np.arange(6).astype(name) * (2**40 + 1)
    with enabled_x64(True):
        batches = make_jax_iterator(yogadl.from_source({"x": column}).stream(), 6)
    batch = next(batches)  # read by a thread, which does not know of the setting by itself
    assert batch["x"].dtype == name
    np.testing.assert_array_equal(batch["x"], column)


def test_what_jax_makes_narrower_is_named_in_one_warning():
    source = {"id": np.arange(6), "y": np.ones(6), "x": np.ones(6, np.float32)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = make_jax_iterator(yogadl.from_source(source).stream(), 2)
        assert [batch["id"].dtype for batch in batches] == ["int32"] * 3
    assert [(one.category, one.filename) for one in caught] == [(UserWarning, __file__)]
    assert "'id' (int64 to int32), 'y' (float64 to float32)" in str(caught[0].message)
    assert "'x'" not in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_default_device_is_that_of_whoever_asks(ref):
    device = jax.devices()[3]
    with jax.default_device(device):
        batches = make_jax_iterator(ref.stream(), 8)
    assert next(batches)["x"].devices() == {device}


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_guard_against_accidental_transfers_lets_ours_pass(ref, is_sharded):
    sharding = NamedSharding(mesh(4), P("data")) if is_sharded else None
    batches = make_jax_iterator(ref.stream(), 8, sharding)
    with jax.transfer_guard("disallow"):
        assert np.asarray(next(batches)["id"]).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (["a", "bc", "d"], "field 'odd' holds str.*ref.fields"),
        ([{"a": 1}, None, [1]], "field 'odd' holds json.*ref.fields"),
        ([b"a", b"bc", b"d"], "field 'odd' holds bytes.*ref.fields"),
        ([np.ones(1), np.ones(2), np.ones(3)], "field 'odd' holds arrays of varying shape.*ref.fields"),
        (np.arange(3).astype("M8[s]"), "field 'odd' has dtype datetime64.*view it as int64"),
        (np.arange(3).astype("m8[ms]"), "field 'odd' has dtype timedelta64.*view it as int64"),
    ],
    ids=["str", "json", "bytes", "ragged", "datetime", "timedelta"],
)
def test_a_field_that_can_not_go_on_to_a_device_is_refused_at_once(column, message):
    records = [{"x": np.float32(1), "odd": value} for value in column]
    ref = yogadl.from_source(records)
    with pytest.raises(UnsupportedDataError, match=message):
        make_jax_iterator(ref.stream(), 2)
    assert len(list(make_jax_iterator(ref.fields("x").stream(), 2))) == 2


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "yogadl-prefetch"]


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_threads_end_with_the_iterator(ref, is_closed, threads):
    batches = make_jax_iterator(ref.stream(), 8, epochs=None, threads=threads)
    next(batches)
    started = readers()
    assert len(started) == threads
    if is_closed:
        batches.close()
    else:
        del batches
    for thread in started:
        thread.join(30)
    assert not readers()


def test_the_interpreter_may_end_while_batches_are_on_their_way():
    code = (
        "import jax, numpy as np, yogadl\n"
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec as P\n"
        "from yogadl.adapters.jax import make_jax_iterator\n"
        "ref = yogadl.from_source(np.zeros((4000, 1000), np.float32))\n"
        "sharding = NamedSharding(Mesh(np.array(jax.devices()), 'd'), P('d'))\n"
        "options = {'epochs': None, 'prefetch': 50}\n"
        "some = make_jax_iterator(ref.stream(), 80, **options, threads=3)\n"
        "others = make_jax_iterator(ref.stream(), 80, sharding, **options)\n"
        "print(next(some).shape, next(others).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(80, 1000) (80, 1000)\n", "")


class Faulty:
    """Records of which one can't be read for a while."""

    def __init__(self):
        self.is_broken = False

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if self.is_broken and index == 13:
            raise KeyError("the disk is on fire")
        return {"id": np.int32(index)}


@pytest.mark.parametrize("is_sharded", [False, True])
def test_an_error_comes_after_the_batches_before_it_and_the_next_call_tries_again(is_sharded):
    source = Faulty()
    sharding = NamedSharding(mesh(2), P("data")) if is_sharded else None
    batches = make_jax_iterator(yogadl.from_source(source).stream(), 4, sharding)
    source.is_broken = True
    assert ids_of([next(batches) for _ in range(3)]) == list(range(12))
    with pytest.raises(KeyError, match="on fire"):
        next(batches)
    source.is_broken = False
    assert ids_of(batches) == list(range(12, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2, "prefetch": -1}, "prefetch"),
        ({"batch_size": 2, "threads": 0}, "threads"),
        ({"batch_size": 2, "prefetch": 0, "threads": 2}, "read ahead: pass prefetch=1"),
        ({"batch_size": 2, "sharding": "all"}, r"must be one such as NamedSharding.*, not 'all'"),
        ({"batch_size": 2, "sharding": P("data")}, r"must be one such as NamedSharding.*, not P"),
        ({"batch_size": 2, "sharding": {"x": "all"}}, r"pass a sharding for each of \['id', 'x'\]"),
        ({"batch_size": 2, "sharding": {"id": 1, "x": 2}}, "for field 'id' must be"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(ref, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_jax_iterator(ref.stream(), **options)


DATA, DIVIDES_NOT = P("data"), r"field 'id' has the shape \(12,\).*choose another batch_size"
SHARDINGS = [
    ({}, 128, (8,), DATA, "an epoch has 101 records and a batch 128: with a sharding"),
    ({}, 12, (8,), DATA, DIVIDES_NOT),
    ({}, 12, (8, 1), DATA, DIVIDES_NOT),
    ({}, 16, (4, 2), P("data", "model"), "field 'id'.*a sharding for each field"),
    ({"shard_rank": 1, "num_shards": 2}, 8, (8,), DATA, "shard 1 of 2 already: open it without shard_rank"),
]


@pytest.mark.parametrize("epochs", [1, 3, None])
@pytest.mark.parametrize(("options", "size", "axes", "rows", "message"), SHARDINGS)
def test_shardings_that_do_not_fit_are_refused_at_once(ref, options, size, axes, rows, message, epochs):
    with pytest.raises(ConfigurationError, match=message):
        make_jax_iterator(ref.stream(**options), size, NamedSharding(mesh(*axes), rows), epochs=epochs)


def test_no_records_and_a_single_batch_go_with_a_sharding(ref):
    rows = NamedSharding(mesh(8), P("data"))
    assert len(list(make_jax_iterator(ref.stream(), 96, rows))) == 1
    assert list(make_jax_iterator(ref[:0].stream(), 96, rows)) == []


def test_one_process_is_one_share():
    assert adapter.shards() == {"shard_rank": 0, "num_shards": 1}


# Many devices.


LAYOUTS = {
    "rows over data": P("data"),
    "rows over model": P("model"),
    "rows over both": P(("data", "model")),
    "rows over both, the other way round": P(("model", "data")),
    "columns over model": P(None, "model"),
    "rows and columns": P("data", "model"),
    "copies": P(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_device_holds_its_part_of_the_global_batch(ref, layout):
    sharding = NamedSharding(mesh(4, 2), LAYOUTS[layout])
    batches = list(make_jax_iterator(shuffled(ref.fields("x")), 16, sharding))
    expected = list(shuffled(ref.fields("x")).batch(16, drop_remainder=True))
    assert len(batches) == len(expected) == 6
    for ours, theirs in zip(batches, expected, strict=True):
        assert ours["x"].sharding == sharding
        np.testing.assert_array_equal(ours["x"], theirs["x"])
        for shard in ours["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, theirs["x"][shard.index])


def test_each_field_may_have_a_sharding_of_its_own(ref):
    over = mesh(4, 2)
    sharding = {"id": NamedSharding(over, P()), "x": NamedSharding(over, P("data", "model"))}
    batch = next(make_jax_iterator(shuffled(ref), 16, sharding))
    assert {name: array.sharding for name, array in batch.items()} == sharding
    expected = next(iter(shuffled(ref).batch(16)))
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array)


DEEP = [{"a": (np.int32(i), {"b": np.int32(-i)}), "c": np.int32(i)} for i in range(8)]
ROWS, COPIES = (lambda: NamedSharding(mesh(8), P("data"))), (lambda: NamedSharding(mesh(8), P()))


@pytest.mark.parametrize(
    ("records", "sharding", "leaves"),
    [
        (DEEP, {"a": (ROWS, {"b": COPIES}), "c": ROWS}, [ROWS, COPIES, ROWS]),
        (DEEP, {"a": ROWS, "c": COPIES}, [ROWS, ROWS, COPIES]),
        (DEEP, lambda: SingleDeviceSharding(jax.devices()[5]), None),
        (np.arange(8, dtype=np.int16), ROWS, [ROWS]),
    ],
    ids=["as deep", "for all below", "one device", "a value"],
)
def test_a_tree_of_shardings_may_be_as_deep_as_the_record_or_less(records, sharding, leaves):
    made = jax.tree.map(lambda make: make(), sharding)
    batch = next(make_jax_iterator(yogadl.from_source(records).stream(), 8, made))
    found = jax.tree.leaves(batch)
    assert [array.sharding for array in found] == ([one() for one in leaves] if leaves else [made] * 3)
    signs = [1] if isinstance(records, np.ndarray) else [1, -1, 1]
    assert [array.tolist() for array in found] == [[sign * i for i in range(8)] for sign in signs]


@pytest.mark.parametrize("has_own", [False, True])
def test_padding_can_be_told_of_global_batches_and_lie_elsewhere(ref, has_own):
    rows, copies = NamedSharding(mesh(4), P("data")), NamedSharding(mesh(4), P())
    wanted = {"id": rows, "x": rows, "is_padding": copies if has_own else rows}
    sharding = wanted if has_own else rows
    batch = next(make_jax_iterator(ref.stream(), 8, sharding, padding_field="is_padding"))
    assert {name: array.sharding for name, array in batch.items()} == wanted
    assert batch["is_padding"].tolist() == [False] * 8


def test_a_step_takes_the_batches_as_they_are(ref):
    sharding = NamedSharding(mesh(4, 2), P("data"))
    step = jax.jit(lambda batch: batch["x"].sum(axis=1) + batch["id"], in_shardings=(sharding,))
    batches = make_jax_iterator(ref.stream(), 16, sharding)
    for batch, expected in zip(batches, ref.stream().batch(16, drop_remainder=True), strict=True):
        np.testing.assert_allclose(step(batch), expected["x"].sum(axis=1) + expected["id"], rtol=1e-6)


def test_memory_that_a_step_was_given_is_not_that_of_later_batches(ref):
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    expected = [batch["x"] for batch in shuffled(ref).batch(8, drop_remainder=True)]
    for batch, rows in zip(make_jax_iterator(shuffled(ref), 8, drop_remainder=True), expected, strict=True):
        np.testing.assert_array_equal(batch["x"], rows)
        step(batch["x"])


def test_global_batches_are_full_and_the_cursor_ends_with_the_epoch(ref):
    batches = make_jax_iterator(shuffled(ref), 8, NamedSharding(mesh(8), P("data")), epochs=2)
    found = [next(batches) for _ in range(12)]
    assert batches.state_dict() == shuffled(ref).cursor(96)
    found += [next(batches)]
    assert batches.state_dict() == shuffled(ref).cursor(8, epoch=1)
    found += list(batches)
    assert [len(batch["id"]) for batch in found] == [8] * 24
    assert ids_of(found[:12]) == shuffled(ref).indices(0, 0, 96).tolist()
    assert ids_of(found[12:]) == shuffled(ref).indices(1, 0, 96).tolist()
    assert batches.state_dict() == shuffled(ref).cursor(0, epoch=2)


def test_without_prefetch_nothing_is_on_the_device_before_it_is_asked_for(ref):
    before = len(jax.live_arrays())
    batches = make_jax_iterator(ref.stream(), 4, prefetch=0)
    kept = [next(batches)["id"] for _ in range(6)]
    assert len(jax.live_arrays()) <= before + len(kept) + 1  # x of the newest


def test_copies_are_read_once_and_put_on_every_device():
    source = Counted(8)
    stream = yogadl.from_source(source, fingerprint="counted").stream()
    source.asked.clear()  # the first record was asked for its structure
    batch = next(make_jax_iterator(stream, 8, NamedSharding(mesh(2, 4), P("data")), prefetch=0))
    assert sorted(source.asked) == list(range(8))
    assert len(batch["id"].addressable_shards) == 8


@settings(max_examples=40)
@given(
    rows=st.sampled_from([1, 2, 4, 8]),
    per_device=st.integers(1, 6),
    start=st.integers(0, N),
    epochs=st.integers(1, 2),
    ahead=st.sampled_from([(0, 1), (1, 1), (2, 1), (2, 2)]),
)
def test_whatever_the_mesh_the_order_stays(ref, rows, per_device, start, epochs, ahead):
    size = rows * per_device
    stream = shuffled(ref, cursor=shuffled(ref).cursor(start))
    sharding = NamedSharding(mesh(rows, 8 // rows), P("data"))
    options = {"epochs": epochs, "prefetch": ahead[0], "threads": ahead[1]}
    found = ids_of(make_jax_iterator(stream, size, sharding, **options))
    first = stream.indices(0).tolist()
    expected = first[: len(first) // size * size]
    if epochs == 2:
        expected += stream.indices(1).tolist()[: N // size * size]
    assert found == expected


def test_records_of_many_devices_are_read_with_their_places():
    stream = placed(160, shuffle=True)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    sharding = {name: NamedSharding(mesh, P("data")) for name in ("epoch", "index", "p")}
    sharding["position"] = NamedSharding(mesh, P("model"))
    batches = make_jax_iterator(stream, 16, sharding, epochs=2, padding_field="p")
    check_places(stream, list(batches), (0, 1), "p")
