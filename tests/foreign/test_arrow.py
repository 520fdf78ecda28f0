"""Streams and files of Arrow made here by hand: what no writer makes is refused, or read as it is."""

import struct

import numpy as np
import pytest
from indexed_files import WINDOWS, fuzz, records_of, refusal
from inside import Arrow

from yogadl.errors import ConfigurationError

SCHEMA, DICTIONARY, RECORDS = 1, 2, 3
INT, FLOAT, BINARY, STRING, BOOL, LIST, STRUCT, FIXED_BINARY, FIXED_LIST = 2, 3, 4, 5, 6, 12, 13, 15, 16


class Part:
    """A part of a flatbuffer, in which all references are relative: its bytes, and where it is entered."""

    def __init__(self, content, entry=0):
        self.content, self.entry = content, entry


def table(*slots):
    """Each slot is None, the bytes of a number, or a part."""
    sizes = [0 if slot is None else 4 if isinstance(slot, Part) else len(slot) for slot in slots]
    places = np.cumsum([4, *sizes]).tolist()
    offsets = [place if size else 0 for place, size in zip(places, sizes, strict=False)]
    head = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), places[-1], *offsets)
    body, after = struct.pack("<i", len(head)), b""
    for slot, place in zip(slots, places, strict=False):
        if isinstance(slot, Part):
            body += struct.pack("<I", places[-1] - place + len(after) + slot.entry)
            after += slot.content
        elif slot is not None:
            body += slot
    return Part(head + body + after, len(head))


def vector(parts):
    head, after = struct.pack("<I", len(parts)), b""
    for number, part in enumerate(parts):
        head += struct.pack("<I", 4 * (len(parts) - number) + len(after) + part.entry)
        after += part.content
    return Part(head + after)


def numbers(values, width=1):
    return Part(struct.pack(f"<I{len(values)}q", len(values) // width, *values))


def text(value):
    return Part(struct.pack("<I", len(value.encode())) + value.encode())


def field(name, kind, *parameters, children=(), dictionary=None, metadata=()):
    return table(
        text(name), b"\1", bytes([kind]), table(*parameters), dictionary, vector(children),
        vector([table(text(key), text(value)) for key, value in metadata]),
    )  # fmt: skip


def int32(name="n"):
    return field(name, INT, struct.pack("<i", 32), b"\1")


def message(kind, header, body=b"", *, version=4, body_bytes=None):
    size = struct.pack("<q", len(body) if body_bytes is None else body_bytes)
    root = table(struct.pack("<h", version), bytes([kind]), header, size)
    metadata = struct.pack("<I", 4 + root.entry) + root.content
    return struct.pack("<iI", -1, len(metadata)) + metadata + body


def schema(*fields, endianness=0, **options):
    return message(SCHEMA, table(struct.pack("<h", endianness), vector(fields)), **options)


def records(rows, nodes, buffers, body, *, compression=None, counts=(), **options):
    """Return a record batch; `nodes` and `buffers` are lists of pairs."""
    header = table(
        struct.pack("<q", rows), numbers(sum(nodes, ()), 2), numbers(sum(buffers, ()), 2), compression,
        numbers(counts) if counts else None,
    )  # fmt: skip
    return message(RECORDS, header, body, **options)


END = struct.pack("<iI", -1, 0)
FIELDS = [
    int32(),
    field("s", STRING),
    field("b", BOOL),
    field("f", FIXED_BINARY, struct.pack("<i", 3)),
    field("l", LIST, children=[field("item", FLOAT, struct.pack("<h", 2))]),
    field("a", FIXED_LIST, struct.pack("<i", 5), children=[int32("item")]),
]


def batch(begin, rows):
    """Return a record batch of all FIELDS."""
    values = range(begin, begin + rows)
    lengths = np.array([k % 4 for k in values], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<i4")
    parts = [
        b"", np.array(values, "<i4").tobytes(),
        b"", offsets.tobytes(), "".join("abc"[: k % 4] for k in values).encode(),
        b"", np.packbits([k % 3 == 0 for k in values], bitorder="little").tobytes(),
        b"", b"".join(b"%03d" % k for k in values),
        b"", offsets.tobytes(), b"", np.array([k for k in values for _ in range(k % 4)], "<f8").tobytes(),
        b"", b"", np.repeat(np.array(values, "<i4"), 5).tobytes(),
    ]  # fmt: skip
    body, buffers = b"", []
    for part in parts:
        buffers.append((len(body), len(part)))
        body += part + bytes(-len(part) % 8)
    counts = [rows] * 5 + [int(lengths.sum()), rows, rows * 5]
    return records(rows, [(count, 0) for count in counts], buffers, body)


def stream_of(rows, each):
    batches = [batch(begin, min(each, rows - begin)) for begin in range(0, rows, each)]
    return schema(*FIELDS) + b"".join(batches) + END


def file_of(stream, footer=b"footer"):
    return b"ARROW1\0\0" + stream + footer + struct.pack("<i", len(footer)) + b"ARROW1"


@pytest.mark.parametrize("window_bytes", WINDOWS)
@pytest.mark.parametrize("rows", [0, 1, 7, 131])
@pytest.mark.parametrize("make", [bytes, file_of])
def test_records_come_back(make, rows, window_bytes):
    kind, found = records_of(Arrow(), make(stream_of(rows, 23)), window_bytes=window_bytes)
    dtypes = [(field.leaf.dtype, field.leaf.shape) for field in kind.spec.fields]
    assert dtypes == [
        ("int32", ()), ("str", ()), ("bool", ()), ("bytes", ()), ("float64", (None,)), ("int32", (5,)),
    ]  # fmt: skip
    assert len(found) == rows
    for k, record in enumerate(found):
        lists = record.pop("l").tolist(), record.pop("a").tolist()
        assert lists == ([k] * (k % 4), [k] * 5)
        assert record == {"n": k, "s": "abc"[: k % 4], "b": k % 3 == 0, "f": b"%03d" % k}


@pytest.mark.parametrize("values", [1, 16, 100])
def test_a_record_batch_of_several_batches(monkeypatch, values):
    monkeypatch.setattr("yogadl._foreign.arrow._BATCH_VALUES", values)
    found = records_of(Arrow(("b", "n", "s")), stream_of(131, 131))[1]
    assert found == [{"b": k % 3 == 0, "n": k, "s": "abc"[: k % 4]} for k in range(131)]


@pytest.mark.parametrize("fields", [(), ("n", "n"), ["n"], "n"])
def test_what_are_no_fields_is_refused(fields):
    with pytest.raises(ConfigurationError):
        Arrow(fields)


def one(rows=2, nodes=((2, 0),), buffers=((0, 0), (0, 8)), body=bytes(8), **options):
    return schema(int32()) + records(rows, list(nodes), list(buffers), body, **options)


def nested(levels):
    inner = int32("x")
    for _ in range(levels):
        inner = field("x", STRUCT, children=[inner])
    return inner


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
        (one(nodes=[]), "not those of the columns"),
        (one(nodes=[(2, 0)] * 2), "not those of the columns"),
        (one(buffers=[(0, 0)]), "not those of the columns"),
        (one(buffers=[(0, 0), (0, 8), (0, 0)]), "not those of the columns"),
        (one(counts=[1]), "not those of the columns"),
        (one(buffers=[(0, 0), (8, 8)]), "overlap, or lie outside"),
        (one(buffers=[(0, 0), (-8, 8)]), "overlap, or lie outside"),
        (one(buffers=[(0, 0), (0, -8)]), "overlap, or lie outside"),
        (one(buffers=[(0, 0), (2**63 - 1, 2**63 - 1)]), "overlap, or lie outside"),
        (one(buffers=[(0, 8), (0, 8)]), "overlap, or lie outside"),
        (one(body_bytes=9), "damaged, cut"),
        (one(body_bytes=-1), "damaged, cut"),
        (one(version=2), "damaged, cut"),
        (one(compression=table(b"\0")), "uncompressed"),
        (one() + message(SCHEMA, table()), "type 1 is not read"),
        (one() + END + b"1", "bytes follow the end"),
        (one() + b"1", "a message is cut"),
        (schema(int32(), endianness=1), "big-endian"),
        (schema(), "no columns"),
        (schema(*[int32()] * 4097), "more than 4096"),
        (schema(int32(), int32()), "rename it"),
        (schema(field("x", 99)), "type 99 is unknown"),
        (schema(field("x", LIST)), "one type of items"),
        (schema(field("x", INT, struct.pack("<i", 24), b"\1")), "is of type int, which is not read"),
        (schema(field("x", FIXED_BINARY, struct.pack("<i", -1))), "values of -1 bytes"),
        (
            schema(field("x", FIXED_LIST, struct.pack("<i", 2**30), children=[int32()])),
            "values of 4294967296 bytes",
        ),
        (
            schema(field("x", INT, struct.pack("<i", 32), metadata=[("ARROW:extension:name", "e")])),
            "type 'e'",
        ),
        (schema(field("x", STRING, dictionary=table())), "dictionary-encoded"),
        (schema(nested(3)), "flatten"),
        (schema(nested(70)), "nested"),
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


def test_an_empty_buffer_may_be_said_to_lie_anywhere():
    content = TEXTS + records(2, [(2, 0)], [(2**60, 0), (0, 12), (-(2**60), 0)], bytes(16))
    assert records_of(Arrow(), content)[1] == [{"s": ""}] * 2


def test_dictionaries_of_columns_that_are_left_out_are_passed_over():
    fields = schema(int32(), field("d", STRING, dictionary=table()))
    body = np.arange(4, dtype="<i4").tobytes()
    rows = records(2, [(2, 0), (2, 0)], [(0, 0), (0, 8), (8, 0), (8, 8)], body)
    content = fields + message(DICTIONARY, table(), bytes(16)) + rows + END
    assert records_of(Arrow(("n",)), content)[1] == [{"n": 0}, {"n": 1}]


def test_many_references_to_one_field_end_soon():
    # Each level refers a thousand times to the next one: 10**12 fields in some kilobytes.
    inner = int32("x")
    for _ in range(4):
        places = b"".join(struct.pack("<I", 4 * (1000 - k) + inner.entry) for k in range(1000))
        children = Part(struct.pack("<I", 1000) + places + inner.content)
        inner = table(text("x"), b"\1", bytes([STRUCT]), table(), None, children)
    assert "too many fields are nested" in refusal(Arrow(), schema(inner))


@pytest.mark.parametrize("make", [bytes, file_of])
def test_damaged_files(make):
    fuzz(Arrow(), make(stream_of(9, 5)))
