"""Streams and files of Arrow made here by hand: what no writer makes is refused, or read as it is."""

import struct

import numpy as np
import pytest
from arrow_by_hand import (
    BINARY,
    BINARY_VIEW,
    DICTIONARY,
    END,
    FIXED_BINARY,
    FIXED_LIST,
    IMAGES,
    INT,
    LIST,
    LIST_VIEW,
    RECORDS,
    ROWS,
    SCHEMA,
    STRING,
    STRING_VIEW,
    STRUCT,
    VALID,
    Part,
    body_of,
    field,
    file_of,
    image_rows,
    images,
    int32,
    message,
    records,
    schema,
    stream_of,
    table,
    text,
)
from foreign_files import read, reader_of, records_of, refusal
from inside import Arrow

from yogadl.errors import ConfigurationError


def test_the_leaves_of_all_fields():
    kind, found = read(Arrow(), stream_of(0, 23))
    assert found == []
    assert [(field.leaf.dtype, field.leaf.shape) for field in kind.spec.fields] == [
        ("int32", ()), ("str", ()), ("bool", ()), ("bytes", ()), ("float64", (None,)), ("int32", (5,)),
    ]  # fmt: skip


def one(rows=2, nodes=((2, 0),), buffers=((0, 0), (0, 8)), body=bytes(8), **options):
    return schema(int32()) + records(rows, list(nodes), list(buffers), body, **options)


def nested(levels):
    inner = int32("x")
    for _ in range(levels):
        inner = field("x", STRUCT, children=[inner])
    return inner


def wide(name, count):
    return field(name, STRUCT, children=[int32(str(k)) for k in range(count)])


TEXTS = schema(field("s", STRING))
OFFSETS = [(2, 0)], [(0, 0), (0, 12), (16, 8)]


def texts(*offsets):
    return TEXTS + records(2, *OFFSETS, np.array([*offsets, 0, 0, 0], "<i4").tobytes())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (one(rows=2**62, nodes=[(2**62, 0)]), "has 8 bytes of"),
        (one(rows=3, nodes=[(3, 0)]), "has 8 bytes of 12"),
        (one(rows=-1, nodes=[(-1, 0)]), "has -1 values"),
        (one(nodes=[(3, 0)]), "has 3 values in a batch of 2"),
        (one(nodes=[(2, 1)]), "has nulls"),
        (one(nodes=[(2, -1)]), "has nulls"),
        *(
            (one(**options), "not those of the columns")
            for options in (
                {"nodes": []},
                {"nodes": [(2, 0)] * 2},
                {"buffers": [(0, 0)]},
                {"counts": [1]},
                {"buffers": [(0, 0), (0, 8), (0, 0)]},
            )
        ),
        *(
            (one(buffers=[first, second]), "overlap, or lie outside")
            for first, second in (
                ((0, 0), (8, 8)),
                ((0, 0), (-8, 8)),
                ((0, 0), (0, -8)),
                ((0, 0), (2**63 - 1, 2**63 - 1)),
                ((0, 8), (0, 8)),
            )
        ),
        (one(body_bytes=9), "damaged, cut"),
        (one(body_bytes=-1), "damaged, cut"),
        (one(version=2), "damaged, cut"),
        (one(compression=table(b"\0")), "uncompressed"),
        (one() + message(SCHEMA, table()), "type 1 is not read"),
        (one() + END + b"1", f"byte {len(one() + END)}: bytes follow the end"),
        (one() + b"1", "a message is cut"),
        (schema(int32(), endianness=1), "big-endian"),
        (schema(), "no columns"),
        (schema(*[int32()] * 4097), "more than 4096"),
        (schema(int32(), int32()), "rename it"),
        (schema(field("x", 99)), "type 99 is unknown"),
        (schema(field("x", LIST)), "one type of items"),
        (schema(field("x", LIST_VIEW, children=[int32()])), "'x' is of type list_view, which is not read"),
        (schema(field("x", INT, struct.pack("<i", 24), b"\1")), "is of type int, which is not read"),
        (schema(field("x", FIXED_BINARY, struct.pack("<i", -1))), "values of -1 bytes"),
        (
            schema(field("x", FIXED_LIST, struct.pack("<i", 2**30), children=[int32()])),
            "values of 4294967296",
        ),
        (
            schema(field("x", INT, struct.pack("<i", 32), metadata=[("ARROW:extension:name", "e")])),
            "type 'e'",
        ),
        (schema(field("x", STRING, dictionary=table())), "dictionary-encoded"),
        (schema(nested(64)), "nested"),
        (schema(field("x", STRUCT)), "'x' is a struct without fields"),
        (schema(field("x", STRUCT, children=[int32(), int32()])), "'x/n' has a name that another"),
        (schema(field("x", STRUCT, children=[field("y", 1)])), "'x/y' is of type null"),
        (schema(field("x", STRUCT, children=[int32()], dictionary=table())), "'x' is dictionary-encoded"),
        (schema(field("x", LIST, children=[nested(1)])), "a list of struct"),
        (schema(wide("a", 2048), wide("b", 2049)), "more than 4096 columns: choose"),
        (schema(field("x" * 5000, STRING)), "a text of 5000 bytes"),
        (TEXTS + records(2, [(2, 0)], [(0, 0), (0, 8), (8, 8)], bytes(16)), "has 8 bytes of 12"),
        (texts(0, 5, 9), "outside of its buffer"),
        (texts(0, 5, 4), "outside of its buffer"),
        (texts(-1, 5, 6), "outside of its buffer"),
        (file_of(schema(int32()), b""), "no footer"),
        (b"FEA1" + bytes(90), "version 1 of Feather"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(90), "can't have 2147483647"),
        (message(RECORDS, table()), "begins with its schema"),
        (END, "begins with its schema"),
    ],
)
def test_what_is_refused(content, problem):
    assert problem in refusal(Arrow(), content)


def referred(inner, count):
    """Return a struct that refers to one field many times."""
    places = b"".join(struct.pack("<I", 4 * (count - k) + inner.entry) for k in range(count))
    children = Part(struct.pack("<I", count) + places + inner.content)
    return table(text("x"), b"\1", bytes([STRUCT]), table(), None, children)


def test_an_empty_buffer_may_be_said_to_lie_anywhere():
    content = TEXTS + records(2, [(2, 0)], [(2**60, 0), (0, 12), (-(2**60), 0)], bytes(16)) + END
    assert records_of(Arrow(), content) == [{"s": ""}] * 2


def test_dictionaries_of_columns_that_are_left_out_are_passed_over():
    fields = schema(int32(), field("d", STRING, dictionary=table()))
    body = np.arange(4, dtype="<i4").tobytes()
    rows = records(2, [(2, 0), (2, 0)], [(0, 0), (0, 8), (8, 0), (8, 8)], body)
    content = fields + message(DICTIONARY, table(), bytes(16)) + rows + END
    assert records_of(Arrow(("n",)), content) == [{"n": 0}, {"n": 1}]


def test_many_references_to_one_field_end_soon():
    # Each level refers a thousand times to the next one: 10**12 fields in some kilobytes.
    inner = int32("x")
    for _ in range(4):
        inner = referred(inner, 1000)
    assert "too many fields are nested" in refusal(Arrow(), schema(inner))


def test_the_nested_fields_of_all_columns_are_counted_together():
    assert "too many fields are nested" in refusal(Arrow(), schema(*3 * [referred(int32(), 30_000)]))


@pytest.mark.parametrize("length", [2**24, 2**24 + 8])
def test_the_metadata_of_a_message_has_16_mib_at_most(length):
    said = refusal(Arrow(), b"\xff\xff\xff\xff" + struct.pack("<I", length) + bytes(length + 8))
    assert (f"can't have {length} bytes" in said) == (length > 2**24)


def test_one_long_name_of_many_fields_is_refused_soon():
    # 65,536 fields share a name of 4000 bytes: 256 MiB in some hundred kilobytes.
    inner = int32("x" * 4000)
    for _ in range(2):
        inner = referred(inner, 255)
    assert "the names of the columns" in refusal(Arrow(), schema(inner))


def test_structs_are_nested_fields():
    kind, found = read(Arrow(missing="empty"), images())
    assert found == image_rows()
    assert [field.name for field in kind.spec.fields] == ["n", "image/bytes", "image/path", "p/q/r"]


def test_the_bits_of_nulls_count_only_where_there_are_nulls():
    assert records_of(Arrow(), images(bits=[b"\0"] * 6)) == image_rows()


@pytest.mark.parametrize("values", [1, 16, 2**22])
@pytest.mark.parametrize("rows", [8, 9, 131])
def test_nulls_in_several_batches_of_a_record_batch(monkeypatch, rows, values):
    monkeypatch.setattr("yogadl._foreign.arrow._BATCH_VALUES", values)
    inner, outer = np.arange(rows) % 3 > 0, np.arange(rows) % 11 > 0
    bits = [np.packbits(each, bitorder="little").tobytes() for each in (outer, inner)]
    bits = [each + bytes(-len(each) % 8) for each in bits]
    offsets = np.arange(rows + 1, dtype="<i4").tobytes()
    body, buffers = body_of([*bits, offsets, b"x" * rows])
    nodes = [(rows, int((~outer).sum())), (rows, int((~inner).sum()))]
    content = schema(field("s", STRUCT, children=[field("t", STRING)]))
    content += records(rows, nodes, buffers, body) + END
    expected = [{"s": {"t": "x" if k % 3 and k % 11 else ""}} for k in range(rows)]
    assert records_of(Arrow(missing="empty"), content) == expected


@pytest.mark.parametrize(
    ("nulls", "problem"),
    [
        ((1, 0, 0, 0, 0, 0), "'image/bytes' lies in a struct that has nulls"),
        ((0, 0, 1, 0, 0, 0), "'image/path' has nulls"),
        ((0, 0, 0, 1, 0, 0), "'p/q/r' lies in a struct that has nulls"),
        ((0, 0, 0, 0, 1, 0), "'p/q/r' lies in a struct that has nulls"),
        ((0, 0, 0, 0, 0, 1), "'p/q/r' has nulls"),
    ],
)
def test_nulls_are_refused_and_the_error_says_how_to_read_them(nulls, problem):
    text = refusal(Arrow(), images(nulls=nulls, bits=[VALID] * 6))
    assert problem in text
    assert 'missing="empty"' in text
    assert "has too few bits" in refusal(Arrow(missing="empty"), images(nulls=nulls))
    for wrong in (-1, ROWS + 1):
        damaged = images(nulls=[wrong if count else 0 for count in nulls], bits=[VALID] * 6)
        assert f"{wrong} nulls in 5 rows" in refusal(Arrow(missing="empty"), damaged)


def test_numbers_have_no_empty_value():
    content = one(nodes=[(2, 1)], buffers=[(0, 1), (8, 8)], body=bytes(16))
    for missing in (None, "empty"):
        text = refusal(Arrow(missing=missing), content)
        assert "'n' has nulls" in text
        assert "a number in their place (missing={'n': -1})" in text
    inside = schema(nested(1)) + records(2, [(2, 1), (2, 0)], [(0, 1), (0, 0), (8, 8)], bytes(16))
    assert "'x/x' lies in a struct that has nulls" in refusal(Arrow(missing="empty"), inside)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_field_of_another_length_than_its_struct_is_refused(number):
    rows = [ROWS] * 7
    rows[number] += 1
    assert "has 6 values in a batch of 5" in refusal(Arrow(), images(rows=rows))


def test_a_field_of_a_struct_is_chosen():
    chosen = ("image/path", "n", "p/q/r", "image/bytes")
    kind, found = read(Arrow(chosen), images(bits=[VALID] * 6))
    assert [field.name for field in kind.spec.fields] == ["image/path", "image/bytes", "n", "p/q/r"]
    assert found == image_rows()
    assert [list(record) for record in found] == [["image", "n", "p"]] * ROWS
    content = images(nulls=(0, 0, 5, 0, 0, 0), bits=[VALID] * 6)  # the path is null everywhere
    assert records_of(Arrow(("image/bytes",)), content) == [
        {"image": {"bytes": row["image"]["bytes"]}} for row in image_rows()
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (("image/z",), r"no column 'image/z' in 'image' of data; there are \['bytes', 'path'\]"),
        (("p/q/r/s",), "no column 'p/q/r/s'"),
        (("image/",), "no column 'image/'"),
        (("n/x",), "no column 'n/x' in data"),
        (("image", "image/path"), "'image' is named whole and by a field"),
        (("p/q/r", "p/q"), "'q' is named whole and by a field"),
    ],
)
def test_fields_that_are_not_there_or_twice(fields, problem):
    with pytest.raises(ConfigurationError, match=problem):
        Arrow(fields).of_first_file(reader_of(images()))


def test_a_name_with_a_slash():
    body = schema(int32("a/b"), field("p", STRUCT, children=[int32("a/b")]))
    buffers = [(0, 0), (0, 8), (8, 0), (8, 0), (8, 8)]
    body += records(2, [(2, 0)] * 3, buffers, np.arange(4, dtype="<i4").tobytes()) + END
    assert records_of(Arrow(("a/b", "p/a/b")), body) == [{"a/b": k, "p": {"a/b": k + 2}} for k in range(2)]
    fields = [field("p", STRUCT, children=[int32("q")]), int32("p/q")]
    with pytest.raises(ConfigurationError, match="'p/q' is the name of several columns"):
        Arrow(("p/q",)).of_first_file(reader_of(schema(*fields)))


def test_a_field_of_a_struct_that_is_not_read_is_refused_as_the_struct_is():
    content = schema(field("x", STRUCT, children=[int32()], dictionary=table()))
    assert "column 'x' is dictionary-encoded" in refusal(Arrow(("x/n",)), content)


def test_as_many_fields_as_may_be():
    kind = Arrow().of_first_file(reader_of(schema(wide("a", 2048), wide("b", 2048))))
    assert len(kind.spec.fields) == 4096


def views(*counts):
    """Return two numbers before, between and after two columns of views, whose buffers vary in number."""
    fields = [int32("a"), field("v", STRING_VIEW), int32("b"), field("w", BINARY_VIEW), int32("c")]
    sizes = [0, 8, 0, 32, *[0] * max(counts[0], 0), 0, 8, 0, 32, *[0] * max(counts[1], 0), 0, 8]
    places = np.cumsum([0, *sizes[:-1]]).tolist()
    body = np.arange(sum(sizes) // 4, dtype="<i4").tobytes()
    buffers = list(zip(places, sizes, strict=True))
    return schema(*fields) + records(2, [(2, 0)] * 5, buffers, body, counts=counts) + END


@pytest.mark.parametrize("counts", [(0, 0), (1, 3), (4, 0)])
def test_views_beside_a_column_have_any_number_of_buffers(counts):
    found = records_of(Arrow(("c", "a", "b")), views(*counts))
    assert found == [{"a": k, "b": 10 + k, "c": 20 + k} for k in range(2)]


def test_a_negative_number_of_buffers_is_refused():
    assert "the counts of buffers are damaged" in refusal(Arrow(("a",)), views(3, -3))


def test_a_struct_of_another_form_than_in_the_first_file_is_refused():
    kind = Arrow().of_first_file(reader_of(images()))
    swapped = field("image", STRUCT, children=[field("path", STRING), field("bytes", BINARY)])
    content = schema(IMAGES[0], swapped, IMAGES[2])
    assert "first file" in refusal(kind, content, kind_is_known=True)
    fewer = schema(IMAGES[0], field("image", STRUCT, children=[field("bytes", BINARY)]), IMAGES[2])
    assert "first file" in refusal(kind, fewer, kind_is_known=True)
    chosen = Arrow(("image/path",)).of_first_file(reader_of(images()))
    assert "no column 'image/path'" in refusal(chosen, fewer, kind_is_known=True)


def test_structs_as_deep_as_may_be():
    levels = 63
    buffers = [(0, 0)] * (levels + 1) + [(0, 8)]
    content = schema(nested(levels)) + records(2, [(2, 0)] * (levels + 1), buffers, bytes(range(8))) + END
    for number, record in zip((0x03020100, 0x07060504), records_of(Arrow(), content), strict=True):
        for _ in range(levels):
            record = record["x"]
        assert record == {"x": number}


@pytest.mark.parametrize("missing", ["", "none", "error", True])
def test_what_says_nothing_of_nulls_is_refused(missing):
    with pytest.raises(ConfigurationError, match="missing is"):
        Arrow(missing=missing)
