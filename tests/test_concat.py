"""Several references as one: `yogadl.concat`."""

import copy

import numpy as np
import pytest
from inside import Announced, BatchMemory, JoinedRecords, RandomAccess, set_constants, spec_of
from processes import fork, wait
from sizes import scaled

import yogadl
from yogadl import RecordsRef
from yogadl.errors import ConfigurationError, StageError


def rows(first, count):
    """Return records with a field of each kind, numbered from `first` on."""
    ids = range(first, first + count)
    return [
        {
            "id": n,
            "image": np.full((2, 3), n % 250, np.uint8),
            "tokens": np.arange(n % 3),
            "text": f"r{n}",
            "none": np.zeros((0, 2), np.float32),
            "day": np.datetime64(n, "D"),
        }
        for n in ids
    ]


SPEC = {"tokens": yogadl.Leaf("int64", (None,))}


def ref_of(first, count):
    return yogadl.from_source(rows(first, count), fingerprint=f"f{first}", spec=SPEC)


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    for name, first, count in (("a", 0, 40), ("b", 40, 1), ("c", 41, 59)):
        storage.submit(rows(first, count), name, "1", build=yogadl.BuildOptions(part_bytes=500))
    # Of one record alone, the tokens vary in length by what it says of them.
    storage.submit(rows(41, 59) + rows(40, 1), "cb", "1")
    return [storage.fetch("a", "1"), storage.fetch("cb", "1")[59:], storage.fetch("c", "1")]


def same(batch, ids):
    wanted = [rows(n, 1)[0] for n in ids]
    assert batch["id"].tolist() == list(ids)
    assert batch["image"].tolist() == [record["image"].tolist() for record in wanted]
    assert [tokens.tolist() for tokens in batch["tokens"]] == [record["tokens"].tolist() for record in wanted]
    assert batch["text"] == [record["text"] for record in wanted]
    assert batch["none"].shape == (len(wanted), 0, 2)
    assert batch["day"].tolist() == [record["day"].item() for record in wanted]
    for name in ("id", "image", "none", "day"):
        assert batch[name].flags.c_contiguous
        assert batch[name].flags.writeable


INDICES = [[], [0], [99], [40], [99, 0, 40, 40, 39, 41, 0], range(100), range(99, -1, -1), [5, 6, 7], [-1, 3]]


@pytest.mark.parametrize("indices", INDICES, ids=lambda indices: repr(indices)[:20])
def test_a_batch_has_the_records_of_all_in_the_order_asked_for(caches, indices):
    ids = [int(n) % 100 for n in indices]
    same(yogadl.concat(caches).gather(indices), ids)
    memory_refs = [ref_of(0, 40), ref_of(40, 1), ref_of(41, 59)]
    same(yogadl.concat(memory_refs).gather(indices), ids)


def test_a_batch_reads_each_parent_once():
    class Source(RandomAccess):
        spec = ref_of(0, 3).spec
        fingerprint, record_bytes = "s", 8

        def __init__(self):
            self.calls, self.told = [], []

        def __len__(self):
            return 10

        def columns(self, indices, fields=None, memory=None):
            self.calls.append(indices.tolist())
            return ref_of(0, 10).columns(indices, fields, memory)

        def will_need(self, indices, fields=None, on_planned=None):
            self.told.append(indices.tolist())
            return Announced()

    sources = [Source() for _ in range(3)]
    both = yogadl.concat(RecordsRef(source) for source in sources)
    both.gather([29, 0, 3, 21, 4])
    assert [source.calls for source in sources] == [[[0, 3, 4]], [], [[9, 1]]]
    both._records.will_need(np.array([29, 0, 3, 21, 4]))
    assert [source.told for source in sources] == [[[0, 3, 4]], [], [[9, 1]]]


def test_parents_without_records_are_passed_over():
    empty = ref_of(0, 2)[:0]
    both = yogadl.concat([empty, ref_of(0, 2), empty, empty, ref_of(2, 3), empty])
    same(both.gather([4, 0, 1, 2]), [4, 0, 1, 2])
    nothing = yogadl.concat([empty, empty])
    assert list(nothing.stream(shuffle=True).batch(3)) == []
    assert nothing.gather([])["id"].tolist() == []


def test_a_concatenation_of_concatenations_is_one():
    a, b, c = ref_of(0, 3), ref_of(3, 4), ref_of(7, 2)
    nested = yogadl.concat([yogadl.concat([a]), yogadl.concat([b, c])])
    assert len(nested._records.parents) == 3
    assert nested.fingerprint == yogadl.concat([a, b, c]).fingerprint


def test_the_fingerprint_is_of_the_parents_and_their_order():
    a, b = ref_of(0, 3), ref_of(3, 4)
    found = {
        yogadl.concat(refs).fingerprint for refs in ([a, b], [b, a], [a], [b], [a, a], [a, b, b], [a[:2], b])
    }
    assert len(found) == 7
    # What it was when this was written: cursors depend on it.
    assert yogadl.concat([a, b]).fingerprint == "a4587a0910faf7861d5e919821a8a016"


@pytest.mark.parametrize("memory", [None, BatchMemory()], ids=["new", "given"])
def test_arrays_are_made_in_the_memory_that_is_given(memory):
    large = [{"x": np.full(70_000, n, np.uint8)} for n in range(4)]
    both = yogadl.concat([yogadl.from_source(large[:2]), yogadl.from_source(large[2:])])
    [column] = both.columns(np.array([3, 0, 2]), [0], memory)
    assert column[:, 0].tolist() == [3, 0, 2]
    assert column[:, -1].tolist() == [3, 0, 2]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"id": np.zeros(2, "i4"), "x": np.zeros((2, 3))}, "'id' is .*int64.*, and is .*int32.* in number 2"),
        ({"id": np.arange(2), "x": np.zeros((2, 4))}, r"field 'x' is .*\(3,\).* first, and is .*\(4,\)"),
        ({"id": np.arange(2)}, "field 'x' is .* in the first, and is not there in number 2"),
        ({"id": np.arange(2), "x": np.zeros((2, 3)), "y": np.zeros(2)}, "'y' is not there in the first"),
        ({"x": np.zeros((2, 3)), "id": np.arange(2)}, "the first are like"),
        ([1, 2], "field 'id' is .* in the first, and is not there"),
    ],
)  # fmt: skip
def test_records_that_are_not_alike_are_refused_with_the_field_that_differs(other, said):
    ref = yogadl.from_source({"id": np.arange(2), "x": np.zeros((2, 3))})
    with pytest.raises(ConfigurationError, match=said):
        yogadl.concat([ref, yogadl.from_source(other)])


@pytest.mark.parametrize("refs", [[], [[1, 2]], [None], [np.arange(3)], [{"x": 1}]], ids=repr)
def test_what_is_no_reference_is_refused(refs):
    with pytest.raises(ConfigurationError):
        yogadl.concat(refs)


SIZES = {"V3": 3, "V24": 24, "below": 4095, "at": 4096, "above": 9000} | dict.fromkeys(
    ["u1", "u2", "f4", "i8", "M8[s]"], 1
)


def columns_of(first, count):
    """Return columns of rows of many sizes."""
    random = np.random.default_rng(first)
    found = {
        name: random.integers(0, 256, (count, size), np.uint8) for name, size in SIZES.items() if size > 1
    }
    small = np.arange(first, first + count) % 250
    numbers = {name: small.astype(name) for name, size in SIZES.items() if size == 1}
    return {**found, **numbers, "none": np.zeros((count, 0)), "id": np.arange(first, first + count)}


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sized")
    storage = yogadl.open_storage(folder)
    whole = columns_of(0, 100), columns_of(100, 50), columns_of(150, 30)
    for number, columns in enumerate(whole):
        storage.submit(
            columns, f"c{number}", "1", build=yogadl.BuildOptions(part_bytes=None if number else 200_000)
        )
    columns = {name: np.concatenate([part[name] for part in whole]) for name in whole[0]}
    return folder, columns


def opened(folder, **options):
    mapped = {"mapped": options.pop("mapped")} if "mapped" in options else {}
    storage = yogadl.open_storage(folder, **mapped)
    return [storage.fetch(f"c{number}", "1", **options) for number in range(3)]


@pytest.mark.parametrize("options", [{}, {"mapped": False}, {"check": True}], ids=str)
def test_rows_of_every_size_are_read_from_caches_in_one_go_or_not(sized, options):
    folder, columns = sized
    both = yogadl.concat(opened(folder, **options))
    for seed in range(3):
        chosen = np.random.default_rng(seed).integers(0, 180, 700)
        batch = both.gather(chosen)
        for name, column in columns.items():
            assert batch[name].dtype == column.dtype
            assert batch[name].tobytes() == column[chosen].tobytes()
            assert batch[name].flags.c_contiguous
            assert batch[name].flags.writeable
            assert batch[name].flags.aligned
    assert both.fields("above", "u2").gather([179, 0])["u2"].tolist() == columns["u2"][[179, 0]].tolist()


def test_views_of_caches_are_read_in_one_go(sized, monkeypatch):
    folder, columns = sized
    _, b, c = opened(folder)
    parents = [c[::-2], b.select([3, 1, 49, 3]), b, c]  # in `a` parts of any size lie one after another
    ids = [*range(179, 150, -2), 103, 101, 149, 103, *range(100, 180)]
    both = yogadl.concat(ref.fields("V24", "id") for ref in parents)

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(JoinedRecords, "_read", never)
    chosen = np.random.default_rng(0).integers(0, len(ids), 300)
    batch = both.gather(chosen)
    wanted = np.array(ids)[chosen]
    assert batch["id"].tolist() == wanted.tolist()
    assert (batch["V24"] == columns["V24"][wanted]).all()
    with pytest.raises(AssertionError):
        yogadl.concat([b.fields("V24", "id"), from_memory(columns)]).gather([0, 84])


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 8, 100])
def test_blocks_of_any_size_and_number_are_read_in_one_go_or_not(tmp_path, monkeypatch, limit):
    set_constants(monkeypatch, MOST_BLOCKS=limit)
    storage, first, refs = yogadl.open_storage(tmp_path), 0, []
    rows = np.arange(70 * 100_000, dtype=np.uint32).reshape(70, -1)
    for number, (count, part_bytes) in enumerate([(41, None), (1, None), (28, 1_600_000)]):
        columns = {"row": rows[first : first + count], "id": np.arange(first, first + count)}
        storage.submit(columns, f"d{number}", "1", build=yogadl.BuildOptions(part_bytes=part_bytes))
        refs.append(storage.fetch(f"d{number}", "1"))
        first += count
    both = yogadl.concat(refs)
    chosen = np.random.default_rng(limit).integers(0, 70, 50)
    batch = both.gather(chosen)
    assert batch["id"].tolist() == chosen.tolist()
    assert np.array_equal(batch["row"], rows[chosen])


def test_a_cache_that_is_mapped_anew_is_read_from_where_it_is_now(sized):
    folder, columns = sized
    with scaled({"_format.rows._REMAP_CACHE_BYTES": 0, "_format.rows._REMAP_AFTER_PAGES": 3}):
        both, windows = yogadl.concat(opened(folder)[1:]), []
        for seed in range(9):
            chosen = np.random.default_rng(seed).integers(0, 80, 100)
            assert both.gather(chosen)["V24"].tobytes() == columns["V24"][100 + chosen].tobytes()
            windows.append(both._records._mapped.windows)
        assert windows[0] != windows[-1]


def test_rows_too_large_for_one_view_of_all_memory_are_read_all_the_same(sized):
    folder, columns = sized
    chosen = np.random.default_rng(0).integers(0, 180, 100)
    # Of the caches by themselves, and of all together, whose memory need not be one stretch.
    for limit in (2**12, 2**31, 2**34, 2**62):
        with scaled({"_format.rows._VIEWED_BYTES": limit}):
            for ref in (yogadl.concat(opened(folder)), yogadl.concat(opened(folder)[1:])):
                batch = ref.gather(chosen % len(ref))
                for name in SIZES:
                    wanted = columns[name][len(columns[name]) - len(ref) :]
                    assert batch[name].tobytes() == wanted[chosen % len(ref)].tobytes()
            [one, *_] = opened(folder)
            assert one.gather(chosen % 100)["above"].tobytes() == columns["above"][chosen % 100].tobytes()


def from_memory(columns):
    return yogadl.from_source({name: columns[name] for name in ("V24", "id")})


def test_functions_of_any_parent_are_called_and_reported():
    def fails(record):
        if record["id"] == 5:
            raise LookupError("no such label")
        return record

    mapped = ref_of(3, 4).map(fails, spec=ref_of(0, 3).spec)
    both = yogadl.concat([ref_of(0, 3), mapped, ref_of(7, 2)])
    inner = yogadl.concat([ref_of(0, 3), both.select(range(9))])
    for ref in (both, both[1:], inner, yogadl.concat([ref_of(0, 3), mapped[:0]])):
        assert ref.stream().run.calls_functions
    assert not yogadl.concat([ref_of(0, 3), ref_of(3, 4)]).stream().run.calls_functions
    batches = iter(both.stream().batch(2))
    assert [next(batches)["id"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(StageError, match="failed at record 2: LookupError"):
        next(batches)


def test_it_is_copied_and_survives_a_fork(caches):
    both = yogadl.concat(caches)
    both.gather([0])
    same(copy.deepcopy(both).gather([41]), [41])
    assert wait(fork(lambda: same(both.gather([99, 40, 3]), [99, 40, 3]))) == 0


class Numbers(RandomAccess):
    """Ten records that are numbers, from `first` on."""

    spec, fingerprint, record_bytes = spec_of(np.int64(0)), "n", 8

    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 10

    def columns(self, indices, fields=None, memory=None):
        return [indices + self.first]


@pytest.mark.parametrize("count", [2**16 - 1, 2**16, 2**16 + 1])
def test_many_parents_are_told_apart(count):
    both = yogadl.concat(RecordsRef(Numbers(10 * number)) for number in range(count))
    chosen = [10 * count - 1, 0, 9, 10, 10 * 2**15, 10 * count - 11]
    assert both.gather(chosen).tolist() == chosen
