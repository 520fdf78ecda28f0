"""A reference to a cache: gather, index, iterate, pickle, fork."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from processes import fork, wait
from trees import assert_same

import yogadl
from yogadl.errors import ConfigurationError

COUNT = 101


def record(n):
    return {"n": n, "x": np.full((2, 2), n, np.float32), "t": f"t{n}", "pair": (n, np.arange(n % 3))}


@pytest.fixture(scope="module", params=[None, 500], ids=["one part", "many parts"])
def ref(request, tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit(
        [record(n) for n in range(COUNT)], "team/d", "1", build=yogadl.BuildOptions(part_bytes=request.param)
    )
    return storage.fetch("team/d", "1")


def test_it_is_a_data_ref(ref):
    assert isinstance(ref, yogadl.DataRef)
    assert isinstance(ref, yogadl.RecordsRef)
    assert len(ref) == COUNT
    assert repr(ref) == f"<RecordsRef of 101 records, fingerprint {ref.fingerprint}>"


def test_help_on_the_interface_leads_to_what_references_can_do():
    assert "help(yogadl.RecordsRef)" in yogadl.DataRef.__doc__
    assert {"gather", "split", "filter", "map"} < set(dir(yogadl.RecordsRef))


@pytest.mark.parametrize("index", [0, 1, 50, 100, -1, -101, np.int64(7), np.uint8(7), np.int32(-3), True])
def test_one_record_by_index(ref, index):
    assert_same(ref[index], record(int(index) % COUNT))


@pytest.mark.parametrize("index", [101, -102, 10**6, 2**63, -(2**63) - 1, 10**30])
def test_an_index_out_of_range_is_an_index_error(ref, index):
    with pytest.raises(IndexError, match=f"record {index} is out of range: there are 101"):
        ref[index]


@pytest.mark.parametrize("index", ["a", None, 1.0, [1, 2], np.array([1]), (1, 2)], ids=repr)
def test_an_index_of_another_kind_is_refused_with_what_to_use(ref, index):
    with pytest.raises((ConfigurationError, TypeError)):
        ref[index]


def test_a_record_is_the_callers_own(ref):
    found = ref[5]
    found["x"][:] = -1
    found["pair"][1][:] = -1
    assert_same(ref[5], record(5))


@pytest.mark.parametrize(
    "indices",
    [[3, 1, 2], (3, 1, 2), range(3), np.array([100, 0], np.uint16), [-1, -101], [7] * 50, range(COUNT), []],
    ids=lambda indices: repr(indices)[:30],
)
def test_a_batch_is_the_records_tree_with_its_leaves_stacked(ref, indices):
    batch = ref.gather(indices)
    wanted = [int(index) % COUNT for index in indices]
    assert list(batch) == ["n", "x", "t", "pair"]
    assert batch["n"].tolist() == wanted
    assert batch["x"].shape == (len(wanted), 2, 2)
    assert batch["x"].dtype == np.float32
    assert batch["x"].flags.writeable
    assert batch["x"].flags.c_contiguous
    assert batch["t"] == [f"t{n}" for n in wanted]
    assert isinstance(batch["pair"], tuple)
    assert [array.tolist() for array in batch["pair"][1]] == [list(range(n % 3)) for n in wanted]
    for found, n in zip(ref.__getitems__(indices), wanted, strict=True):
        assert_same(found, record(n))


@pytest.mark.parametrize(
    "indices", [[101], [-102], [0, 200], np.array([2**64 - 1], np.uint64), np.array([2**63 - 1])]
)
def test_a_batch_out_of_range_is_an_index_error(ref, indices):
    for read in (ref.gather, ref.__getitems__, ref.select):
        with pytest.raises(IndexError, match="out of range: there are 101"):
            read(indices)


@pytest.mark.parametrize("call", ["select", "gather"])
@pytest.mark.parametrize(
    "indices", [3, [1.0], [[1, 2]], ["a"], None, [None], [[1], [2, 3]], [1, [2]]], ids=repr
)
def test_indices_that_are_no_list_of_integers_are_refused(ref, call, indices):
    with pytest.raises(ConfigurationError, match="indices must be a flat list of integers"):
        getattr(ref, call)(indices)


def test_a_mask_is_no_list_of_indices(ref):
    with pytest.raises(ConfigurationError, match="indices must be a flat list of integers"):
        ref.gather([True, False])


def test_iteration_yields_every_record_in_order_as_often_as_asked(ref):
    one, two = iter(ref), iter(ref)
    next(one)
    for n, found in enumerate(two):
        assert_same(found, record(n))
    assert n == COUNT - 1
    assert [int(item["n"]) for item in reversed(ref)] == list(range(COUNT))[::-1]


def test_a_reference_pickles_small_and_reads_the_same(ref):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(ref, protocol)
        assert len(pickled) < 1024
    loaded = pickle.loads(pickled)
    assert loaded.fingerprint == ref.fingerprint
    assert_same(loaded[50], record(50))
    assert len(pickle.dumps(loaded)) == len(pickled)
    assert_same(copy.deepcopy(ref)[50], record(50))


def test_threads_gather_side_by_side(ref):
    def gather(seed):
        rng = np.random.default_rng(seed)
        fresh = pickle.loads(pickle.dumps(ref))
        for _ in range(30):
            indices = rng.integers(0, COUNT, 64)
            for one in (ref, fresh):
                assert one.gather(indices)["n"].tolist() == indices.tolist()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(gather, range(6)))


def test_a_child_after_a_fork_reads_on(ref):
    ref.gather([3])

    def child():
        assert ref.gather([7, 100])["n"].tolist() == [7, 100]

    assert wait(fork(child)) == 0
    assert_same(ref[7], record(7))


def test_a_reference_to_a_single_leaf_gives_leaves(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(np.arange(10, dtype=np.int16), "d", "1")
    ref = storage.fetch("d", "1")
    assert ref[3] == 3
    assert type(ref[3]) is np.int16
    assert ref.gather([3, 4]).dtype == np.int16
    with pytest.raises(ConfigurationError, match="no fields to choose from"):
        ref.fields("x")


@pytest.mark.parametrize("names", [("n", "t"), ["n", "t"]])
def test_fields_in_one_argument_are_told_how_to_be_given(ref, names):
    for given in (ref, yogadl.mix({"a": (ref, 1)})):
        with pytest.raises(ConfigurationError, match=r"write fields\('n', 't'\)"):
            given.fields(names)


@pytest.mark.parametrize("call", ["select", "gather"])
@pytest.mark.parametrize(
    ("indices", "wrong"),
    [
        (range(2**31), 2**31 - 1),
        (range(-(2**40), 0), -(2**40)),
        (range(2**70, 2**70 + 5), 2**70),
        (range(102), 101),
        (range(-102, 3), -102),
        (range(101, -1, -1), 101),
    ],
)
def test_a_range_that_leaves_the_records_is_refused_before_it_takes_memory(call, indices, wrong):
    ref = yogadl.from_source(np.arange(101))
    with pytest.raises(IndexError, match=f"record {wrong} is out of range: there are 101"):
        getattr(ref, call)(indices)


@pytest.mark.parametrize(
    "indices",
    [range(101), range(-101, 0), range(100, -1, -1), range(3, 90, 7), range(5, 5), range(2**70, 2**70)],
)
def test_a_range_gives_the_records_that_it_names(indices):
    ref = yogadl.from_source(np.arange(101))
    expected = [number % 101 for number in indices]
    assert np.asarray(ref.gather(indices)).tolist() == expected
    assert [int(each) for each in ref.select(indices)] == expected


class Squares:
    """Records of a class that knows nothing of the library's."""

    spec = yogadl.from_source([0]).spec
    fingerprint, record_bytes = "squares", 8

    def __len__(self):
        return 10

    def columns(self, indices, fields=None, memory=None):
        return [indices**2]


def test_records_of_any_class_have_all_that_references_have():
    ref = yogadl.RecordsRef(Squares())
    assert ref.gather([3, 0]).tolist() == [9, 0]
    assert [int(n) for n in ref[2:8:2].stream(shuffle=True, shuffle_seed=1)] == [16, 36, 4]
    assert (ref.fingerprint, ref.lineage, ref.metadata, ref.locality().parts) == ("squares", None, {}, 0)
    iterator = iter(ref.stream(shuffle=True))
    next(iterator)
    again = pickle.loads(pickle.dumps(ref)).stream(shuffle=True, cursor=iterator.state_dict())
    assert [int(n) for n in again] == [int(n) ** 2 for n in ref.stream(shuffle=True).indices(0)[1:]]
    assert "records come from no storage" in ref.stream().plan().why
