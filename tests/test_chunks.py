"""Chunks of one length, cut from the values of a field joined end to end."""

import pickle

import numpy as np
import pytest
from cache_files import parts_and_indexes, read_table
from hypothesis import given
from hypothesis import strategies as st
from inside import Announced, Parts, SameNumbers, SameValues, VaryingField, set_constants

import yogadl
from yogadl import Leaf
from yogadl.errors import CacheFormatError, ConfigurationError, CursorError, StageError, UnsupportedDataError

LENGTHS = [3, 0, 0, 7, 1, 64, 0, 5, 129, 2, 0]


def documents(lengths, inner=(), dtype=np.int32):
    """Arrays whose items, joined, count up; each item of `inner` is its number and what follows."""
    ends = np.cumsum(lengths)
    width = int(np.prod(inner))
    return [
        np.arange((end - length) * width, end * width, dtype=dtype).reshape(length, *inner)
        for length, end in zip(lengths, ends, strict=True)
    ]


def cached(path, lengths=LENGTHS, **options):
    """A cache of {"tokens", "name"}; its number of parts follows from `part_bytes`."""
    storage = yogadl.open_storage(path)
    records = [{"name": str(n), "tokens": d} for n, d in enumerate(documents(lengths))]
    if not (path / "docs").exists():
        storage.submit(records, "docs", "1", **options)
    return storage.fetch("docs", "1")


def in_memory(values, shape=(None,)):
    spec = {"tokens": Leaf(values[0].dtype.name, shape)}
    return yogadl.from_source([{"tokens": value} for value in values], spec=spec)


def expected(values, size, pad=None, order=None):
    """The chunks, and which document each of their tokens is of, worked out token by token."""
    order = range(len(values)) if order is None else order
    flat = [(token, n) for n, which in enumerate(order) for token in values[which]]
    chunks, segments = [], []
    for start in range(0, len(flat), size):
        piece = flat[start : start + size]
        if len(piece) < size and pad is None:
            break
        seen = {}
        rows = [token for token, _ in piece]
        ids = [seen.setdefault(n, len(seen)) for _, n in piece]
        missing = size - len(piece)
        chunks.append(rows + [np.full_like(rows[0], pad or 0)] * missing)
        segments.append(ids + [-1] * missing)
    return chunks, segments


def check(ref, values, size, order=None):
    for pad in (None, 9):
        whole = {"drop_remainder": pad is None, "pad": pad}
        chunks, segments = expected(values, size, pad, order)
        bare = ref.chunks("tokens", size, **whole)
        both = ref.chunks("tokens", size, segments="segment", **whole)
        assert len(bare) == len(both) == len(chunks)
        assert both.fingerprint == bare.fingerprint
        for indices in (
            np.arange(len(chunks)),
            np.arange(len(chunks))[::-1],
            np.arange(len(chunks)).repeat(2),
        ):
            found = both.gather(indices)
            assert found["tokens"].shape == (len(indices), size, *values[0].shape[1:])
            assert found["tokens"].dtype == values[0].dtype
            assert found["segment"].dtype == np.int32
            assert found["tokens"].flags.writeable
            assert found["tokens"].flags.c_contiguous
            assert found["segment"].flags.writeable
            for row, index in enumerate(indices):
                assert np.array_equal(found["tokens"][row], chunks[index])
                assert found["segment"][row].tolist() == segments[index]
            again = bare.gather(indices)
            assert list(again) == ["tokens"]
            assert np.array_equal(again["tokens"], found["tokens"])


@pytest.mark.parametrize("part_bytes", [None, 300])
def test_chunks_are_the_documents_joined_and_cut(tmp_path, part_bytes):
    ref = cached(tmp_path, build=yogadl.BuildOptions(part_bytes=part_bytes))
    for size in (1, 4, 63, 64, 65, 210, 211, 212):
        check(ref, documents(LENGTHS), size)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    size=st.integers(1, 40),
    inner=st.sampled_from([(), (2,), (3, 1)]),
    part_bytes=st.sampled_from([60, 200, 2**20]),
)
def test_chunks_of_values_of_any_shape(tmp_path_factory, lengths, size, inner, part_bytes):
    values = documents(lengths, inner)
    check(in_memory(values, (None, *inner)), values, size)
    storage = yogadl.open_storage(tmp_path_factory.mktemp("cache"))
    check(
        storage.submit(
            in_memory(values, (None, *inner)), "d", "1", build=yogadl.BuildOptions(part_bytes=part_bytes)
        ),
        values,
        size,
    )


@pytest.mark.parametrize("at_once", [1, len(LENGTHS) - 1, len(LENGTHS), len(LENGTHS) + 1])
def test_lengths_are_read_some_documents_at_a_time(tmp_path, monkeypatch, at_once):
    set_constants(monkeypatch, LENGTHS_AT_ONCE=at_once)
    check(cached(tmp_path), documents(LENGTHS), 10)


@pytest.mark.parametrize("documents_at_once", [0.5, 1, 1.5, len(LENGTHS) - 1, len(LENGTHS), 3 * len(LENGTHS)])
def test_documents_are_read_for_their_lengths_some_bytes_at_a_time(monkeypatch, documents_at_once):
    ref = in_memory(documents(LENGTHS))
    set_constants(monkeypatch, LENGTHS_READ_BYTES=int(documents_at_once * ref.record_bytes))
    check(ref, documents(LENGTHS), 10)


def test_there_may_be_nothing_to_cut(tmp_path):
    ref = cached(tmp_path)
    for none in (ref[0:0], ref[1:3]):
        assert len(none.chunks("tokens", 1)) == 0
        assert len(none.chunks("tokens", 4, drop_remainder=False, pad=0)) == 0
        assert none.chunks("tokens", 4, segments="s").gather([])["tokens"].shape == (0, 4)
        assert list(none.chunks("tokens", 4).stream(shuffle=True).batch(2)) == []
    assert len(ref.chunks("tokens", sum(LENGTHS) + 1)) == 0


def test_a_field_may_be_nested_numbered_or_the_record_itself():
    values = documents([3, 4])
    nested = yogadl.from_source([{"in": {"ids": v}, "n": 1} for v in values]).chunks("in/ids", 7)
    assert nested[0]["in/ids"].tolist() == list(range(7))
    assert [field.name for field in nested.spec.fields] == ["in/ids"]
    pairs = yogadl.from_source([(v, n) for n, v in enumerate(values)]).chunks(0, 7, segments="s")
    assert pairs[0]["s"].tolist() == [0] * 3 + [1] * 4
    assert pairs[0][0].tolist() == list(range(7))
    assert yogadl.from_source(values).chunks(None, 7)[0].tolist() == list(range(7))


def test_values_of_one_length_are_cut_as_well(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    rows = np.arange(60, dtype=np.int16).reshape(6, 10)
    storage.submit({"tokens": rows}, "rows", "1")
    check(storage.fetch("rows", "1"), list(rows), 7)
    check(storage.fetch("rows", "1")[::2], list(rows), 20, [0, 2, 4])


@pytest.mark.parametrize("first", [0, 4])
def test_a_field_found_late_to_vary_is_cut_where_it_lies_as_rows(tmp_path, first):
    lengths = [first] * 40 + [1, 2, 3] * 5
    check(cached(tmp_path, lengths, build=yogadl.BuildOptions(part_bytes=200)), documents(lengths), 9)
    [table] = (tmp_path / "docs" / "tables").glob("*.parts")
    field = read_table(table).fields[1]
    assert field.varying.any()
    assert set(field.row_bytes[~field.varying].tolist()) == {4 * first}


REFUSED = [
    ({"tokens": "abc"}, "tokens", {}, "holds str"),
    ({"tokens": b"abc"}, "tokens", {}, "holds bytes"),
    ({"tokens": 3}, "tokens", {}, r"shape \(\)"),
    ({"tokens": np.zeros((2, 0))}, "tokens", {}, r"shape \(2, 0\)"),
    ({"tokens": np.zeros(2)}, "token", {}, r"one of \['tokens'\]"),
    ({"tokens": np.zeros(2)}, None, {}, r"one of \['tokens'\]"),
    (np.zeros(2), "tokens", {}, "pass None"),
    (np.zeros(2), None, {"segments": "s"}, "dicts"),
    ({"tokens": np.zeros(2)}, "tokens", {"segments": "tokens"}, "second field"),
    ({"tokens": np.zeros(2)}, "tokens", {"segments": True}, "second field"),
    ({"tokens": np.zeros(2)}, "tokens", {"segments": ""}, "second field"),
    ({"tokens": np.zeros(2)}, "tokens", {"drop_remainder": False}, "pad=0"),
    ({"tokens": np.zeros(2)}, "tokens", {"pad": 0}, "drop_remainder=False"),
    ({"tokens": np.zeros(2)}, "tokens", {"drop_remainder": 1}, "True or False"),
    ({"a": {"b": np.zeros(2)}, "a/b": np.zeros(2)}, "a/b", {}, "no field 'a/b'"),
]


@pytest.mark.parametrize(("record", "field", "options", "message"), REFUSED)
def test_what_can_not_be_cut_is_refused(record, field, options, message):
    with pytest.raises(ConfigurationError, match=message):
        yogadl.from_source([record] * 3).chunks(field, 4, **options)


@pytest.mark.parametrize("shape", [None, (None, None), (2, None)])
def test_values_whose_other_sizes_vary_are_refused(shape):
    ref = yogadl.from_source([{"tokens": np.zeros((2, 3))}] * 3, spec={"tokens": Leaf("float64", shape)})
    with pytest.raises(ConfigurationError, match="first axis"):
        ref.chunks("tokens", 4)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, None, 2**37])
def test_a_size_is_a_number_of_at_least_1(size):
    with pytest.raises(ConfigurationError, match="size"):
        in_memory(documents([3])).chunks("tokens", size)


PADS = [
    (np.uint8, 255, 256), (np.uint8, 0, -1), (np.int32, -1, 1.5), (np.int64, 3, "3"), (np.int32, True, [1]),
    (np.float32, float("nan"), None), (np.float16, 0.5, 0.1), (bool, True, 2), (np.int64, 0, float("nan")),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "good", "bad"), PADS)
def test_what_fills_up_is_a_value_of_the_field(dtype, good, bad):
    ref = in_memory([np.zeros(3, dtype)])
    found = ref.chunks("tokens", 5, drop_remainder=False, pad=good)[0]["tokens"]
    assert np.array_equal(found[3:], np.full(2, good, dtype), equal_nan=dtype is np.float32)
    with pytest.raises(ConfigurationError, match="pad"):
        ref.chunks("tokens", 5, drop_remainder=False, pad=bad)


def test_the_fingerprint_says_what_is_cut_and_how(tmp_path):
    ref = cached(tmp_path)
    refs = [
        ref,
        ref.chunks("tokens", 4),
        ref.chunks("tokens", 5),
        ref.chunks("tokens", 5, drop_remainder=False, pad=0),
        ref.chunks("tokens", 5, drop_remainder=False, pad=1),
        ref[1:].chunks("tokens", 5),
        ref.map(lambda r: {"tokens": r["tokens"][1:]}, spec=ref.spec.project(["tokens"])[0]).chunks(
            "tokens", 5
        ),
    ]
    assert len({each.fingerprint for each in refs}) == len(refs)
    assert ref.fields("tokens").chunks("tokens", 4).fingerprint == refs[1].fingerprint
    assert pickle.loads(pickle.dumps(refs[1])).fingerprint == refs[1].fingerprint
    both = yogadl.from_source([{"a": v, "b": v} for v in documents([3, 4])], "both")
    assert both.chunks("a", 2).fingerprint != both.chunks("b", 2).fingerprint


def test_the_fingerprint_stays_for_ever():
    ref = yogadl.from_source([{"tokens": v} for v in documents(LENGTHS)], "documents")
    assert ref.chunks("tokens", 4).fingerprint == "f30e5734121bcef7571149819e1647b1"
    assert (
        ref.chunks("tokens", 4, drop_remainder=False, pad=0).fingerprint == "e3f3bca5313ec4b55f05b9993e57508a"
    )


def test_no_value_is_read_for_the_lengths(tmp_path, monkeypatch):
    ref = cached(tmp_path, build=yogadl.BuildOptions(part_bytes=300))
    with monkeypatch.context() as patch:
        patch.setattr(VaryingField, "gather", None)
        patch.setattr(VaryingField, "stretches", None)
        assert len(ref[1:].fields("tokens").chunks("tokens", 10)) == 20
    chunks = ref.chunks("tokens", 10)
    monkeypatch.setattr(VaryingField, "gather", None)
    assert chunks[2]["tokens"].tolist() == list(range(20, 30))


@pytest.mark.parametrize("mapped", [True, False])
def test_of_a_long_document_only_what_a_chunk_needs_is_read(tmp_path, monkeypatch, mapped):
    lengths = [5, 500_000, 5]
    cached(tmp_path, lengths)
    ref = yogadl.open_storage(tmp_path, mapped=mapped).fetch("docs", "1")
    chunks = ref.chunks("tokens", 1000)
    read = []
    parts_read = Parts.read

    def noted(self, parts, positions, sizes, **more):
        read.append(int(sizes.sum()))
        return parts_read(self, parts, positions, sizes, **more)

    monkeypatch.setattr(Parts, "read", noted)
    assert len(chunks) == 500
    assert chunks[250]["tokens"].tolist() == list(range(250_000, 251_000))
    assert chunks[0]["tokens"].tolist() == list(range(1000))
    assert bool(read) is not mapped
    assert max(read, default=0) <= 4000


def test_for_the_numbers_of_documents_no_value_is_read(tmp_path):
    cached(tmp_path / "bucket")
    ref = yogadl.open_storage(f"file://{tmp_path}/bucket", mirror=None).fetch("docs", "1")
    chunks = ref.chunks("tokens", 10, segments="segment")
    wanted = expected(documents(LENGTHS), 10)[1]
    assert len(chunks) == len(wanted)  # the lengths are read
    before = ref.locality().ranges
    assert chunks.fields("segment").gather(range(len(wanted)))["segment"].tolist() == wanted
    assert [row["segment"].tolist() for row in chunks.fields("segment").stream()] == wanted
    assert ref.locality().ranges == before
    assert len(chunks[0]["tokens"]) == 10
    assert ref.locality().ranges > before


@pytest.mark.parametrize("mapped", [True, False])
def test_with_checksums_the_chunks_are_the_same(tmp_path, mapped):
    cached(tmp_path, build=yogadl.BuildOptions(part_bytes=300))
    ref = yogadl.open_storage(tmp_path, mapped=mapped).fetch("docs", "1", check=True)
    check(ref[1:], documents(LENGTHS), 17, range(1, len(LENGTHS)))


def test_a_reference_pickles_small_and_knows_its_length(tmp_path):
    lengths = [1, 2] * 20_000
    for chunks in (cached(tmp_path, lengths).chunks("tokens", 7), cached(tmp_path)[5:].chunks("tokens", 7)):
        count = len(chunks)
        pickled = pickle.dumps(chunks)
        assert len(pickled) < 2000
        again = pickle.loads(pickled)
        assert again._records._offsets is None
        assert len(again) == count
        assert again._records._offsets is None
        assert np.array_equal(again[100]["tokens"], chunks[100]["tokens"])


class Counted(list):
    """Documents that note how many of them were asked for."""

    asked = 0

    def __getitem__(self, index):
        Counted.asked += 1
        return super().__getitem__(index)


def test_lengths_that_values_were_read_for_are_pickled():
    docs = Counted(documents([1, 2] * 500))
    chunks = yogadl.from_source(docs, spec=Leaf("int32", (None,))).chunks(None, 4)
    len(chunks)
    again = pickle.loads(pickle.dumps(chunks))
    Counted.asked = 0
    assert again[3].tolist() == [12, 13, 14, 15]
    assert Counted.asked < 10


def test_a_cursor_is_of_the_size_and_not_of_the_fields(tmp_path):
    chunks = cached(tmp_path).chunks("tokens", 5)
    cursor = chunks.stream(shuffle=True).cursor(8)
    want = [record["tokens"].tolist() for record in chunks.stream(shuffle=True)][8:]
    for other in (chunks.fields("tokens"), cached(tmp_path).chunks("tokens", 5, segments="s")):
        rest = other.stream(shuffle=True, cursor=cursor)
        assert [record["tokens"].tolist() for record in rest] == want
    with pytest.raises(CursorError):
        cached(tmp_path).chunks("tokens", 6).stream(shuffle=True, cursor=cursor)


def test_a_function_of_documents_that_fails_names_the_document():
    def halved(record):
        if record["tokens"][0] == 30:
            raise LookupError("no")
        return {"tokens": record["tokens"][::2]}

    ref = in_memory(documents([10] * 6)).map(halved, spec={"tokens": Leaf("int32", (None,))})
    with pytest.raises(StageError, match="record 3"):
        len(ref.chunks("tokens", 4))


def test_hints_name_the_documents_that_chunks_begin_and_end_in(tmp_path):
    chunks = cached(tmp_path).chunks("tokens", 10)
    told = []

    class Parent(SameNumbers, SameValues):
        fingerprint = "parent"

        def will_need(self, indices, fields=None, on_planned=None):
            told.extend(indices.tolist())
            return Announced()

    records = chunks._records
    records.parent = Parent(records.parent)
    records.will_need(np.array([0, 20]))
    assert sorted(set(told)) == [0, 3, 8, 9]
    del told[:]
    small = cached(tmp_path).chunks("tokens", 1)._records
    small.parent = Parent(small.parent)
    small.will_need(np.arange(len(small)))
    assert sorted(set(told)) == [0, 3, 4, 7, 9]  # the others are far longer than a chunk


def in_one_part(path, lengths):
    """A cache of {"tokens"} in one part: the file of that, and where rows and heap begin in it."""
    storage = yogadl.open_storage(path)
    storage.submit(in_memory(documents(lengths)), "docs", "1")
    [(part, _)] = parts_and_indexes(path / "docs")
    [table] = (path / "docs" / "tables").glob("*.parts")
    [field] = read_table(table).fields
    return part, int(field.rows_position[0]), int(field.heap_position[0])


def overwrite(path, position, content):
    """Put other bytes into a file; return those that were there."""
    with path.open("r+b") as file:
        file.seek(position)
        before = file.read(len(content))
        file.seek(position)
        file.write(content)
    return before


@pytest.mark.parametrize("word", range(5))
@pytest.mark.parametrize("is_late", [False, True])
def test_entries_that_were_changed_are_refused_or_lie_in_the_heap(tmp_path, word, is_late):
    part, rows, _ = in_one_part(tmp_path, [4, 5, 6])
    refused = 0
    for value in (0, 1, 2, 17, 20, 2**16, 2**31, 2**32 - 1):
        chunks = yogadl.open_storage(tmp_path).fetch("docs", "1").chunks("tokens", 4)
        if is_late:
            len(chunks)  # what the entries said before is remembered
        before = overwrite(part, rows + 20 + 4 * word, value.to_bytes(4, "little"))
        try:
            found = chunks.gather(range(len(chunks)))["tokens"]
            if word != 1 or value % 4 == 0:  # else the bytes of two numbers
                assert set(found.ravel().tolist()) <= set(range(15))
        except CacheFormatError:
            refused += 1
        overwrite(part, rows + 20 + 4 * word, before)
    assert refused >= 3


def test_damage_is_found_before_a_chunk_is_cut_from_it(tmp_path):
    part, rows, heap = in_one_part(tmp_path, [4, 5, 6])
    before = overwrite(part, rows + 24, b"\x14")
    with pytest.raises(CacheFormatError, match="tokens"):
        len(yogadl.open_storage(tmp_path).fetch("docs", "1", check=True).chunks("tokens", 4))
    overwrite(part, rows + 24, before)
    overwrite(part, heap, b"\xff")
    chunks = yogadl.open_storage(tmp_path).fetch("docs", "1", check=True).chunks("tokens", 4)
    assert len(chunks) == 3  # for which no value is looked at
    with pytest.raises(CacheFormatError, match="tokens"):
        chunks.gather([1])


@pytest.mark.parametrize("lengths", [[2, *[900] * 99], [10] * 60 + [500] + [10] * 60, [0, 7, 9], [7, 7, 0]])
def test_a_document_of_another_length_than_the_first_ones_is_an_error_not_left_out(tmp_path, lengths):
    ref = cached(tmp_path, lengths).map(lambda record: {"tokens": record["tokens"] + 0})
    with pytest.raises(StageError, match="spec="):
        len(ref.chunks("tokens", 5))
    declared = cached(tmp_path, lengths).map(
        lambda record: {"tokens": record["tokens"] + 0}, spec={"tokens": yogadl.Leaf("int32", (None,))}
    )
    assert len(declared.chunks("tokens", 5)) == sum(lengths) // 5
    values = [{"tokens": np.zeros(length, np.int32)} for length in lengths]
    plain = yogadl.from_source(values)
    sampled = np.linspace(0, len(values) - 1, 16).astype(int)
    if len({lengths[number] for number in sampled}) == 1:
        with pytest.raises(UnsupportedDataError, match="spec="):
            len(plain.chunks("tokens", 5))
    else:
        assert len(plain.chunks("tokens", 5)) == sum(lengths) // 5


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("document", [0, 2])
def test_a_function_that_gives_another_length_later_is_found_out(document, change):
    changed = 0

    def resized(record):
        tokens = record["tokens"]
        return {"tokens": np.resize(tokens, len(tokens) + changed * (tokens[0] == 5 * document))}

    spec = {"tokens": Leaf("int32", (None,))}
    chunks = in_memory(documents([5, 5, 5])).map(resized, spec=spec).chunks("tokens", 15)
    assert chunks[0]["tokens"].tolist() == list(range(15))
    changed = change
    with pytest.raises(UnsupportedDataError, match=f"record {document} has {5 + change} values.*had 5 when"):
        chunks[0]


def pictures(shape, dtype=np.uint8, count=5):
    values = np.arange(count).reshape(count, *(1 for _ in shape)) + np.zeros(shape)
    return yogadl.from_source({"image": values.astype(dtype)}, fingerprint="pictures")


@pytest.mark.parametrize(
    ("shape", "dtype"), [((8,), "uint8"), ((8, 2), "float32"), ((8, 5, 2), "uint8"), ((8, 4, 4, 3), "uint8")]
)
def test_tokens_features_and_clips_are_cut_without_a_warning(shape, dtype):
    assert len(pictures(shape, dtype).chunks("image", 4)) == 10


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 6), "uint8"), ((4, 6, 3), "float32"), ((4, 6, 1), "uint8"), ((3, 8, 8), "int16")],
)
def test_pictures_of_one_size_are_cut_with_a_warning(shape, dtype):
    with pytest.warns(
        UserWarning, match=r"'image' has the shape .*: a chunk would be 2 rows of pixels"
    ) as caught:
        pictures(shape, dtype).chunks("image", 2)
    assert caught[0].filename == __file__


def test_pictures_of_varying_height_are_cut_without_a_warning():
    values = [np.zeros((height, 4, 3), np.uint8) for height in (2, 3, 4)]
    assert len(in_memory(values, (None, 4, 3)).chunks("tokens", 3)) == 3


@pytest.mark.parametrize("field", ["image", None])
def test_the_windows_that_the_warning_advises_are_windows_over_records(field):
    ref = pictures((4, 4))
    if field is None:
        ref = yogadl.from_source(np.stack([record["image"] for record in ref]))
    with pytest.warns(UserWarning, match="rows of pixels") as caught:
        ref.chunks(field, 3)
    advice = str(caught[0].message).partition("windows of 3 records: ")[2].partition(". For several")[0]
    windows = eval(advice, {"ref": ref})
    first = [np.asarray(window["image"] if field else window)[:, 0, 0].tolist() for window in windows]
    assert first == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    batches = [batch["image"] if field else batch for batch in windows.stream().batch(2)]
    assert [batch.shape for batch in batches] == [(2, 3, 4, 4), (1, 3, 4, 4)]


@pytest.mark.parametrize("parents", [1, 2])
def test_lengths_of_joined_references_are_read_from_their_caches(tmp_path, monkeypatch, parents):
    joined = yogadl.concat([cached(tmp_path)] * parents)
    records = type(joined._records.parents[0])
    monkeypatch.setattr(records, "columns", lambda *_: pytest.fail("the values were read"))
    assert len(joined.chunks("tokens", 3)) == parents * sum(LENGTHS) // 3
    assert len(joined.packed(max(LENGTHS), fields="tokens").stream()) > 0
