"""Make streams and files of Arrow by hand."""

import struct

import numpy as np

SCHEMA, DICTIONARY, RECORDS = 1, 2, 3
INT, FLOAT, BINARY, STRING, BOOL, LIST, STRUCT, FIXED_BINARY, FIXED_LIST = 2, 3, 4, 5, 6, 12, 13, 15, 16
BINARY_VIEW, STRING_VIEW, LIST_VIEW = 23, 24, 25


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


def body_of(parts):
    """Return buffers in one body, each from a multiple of eight bytes on, and where each lies."""
    body, buffers = b"", []
    for part in parts:
        buffers.append((len(body), len(part)))
        body += part + bytes(-len(part) % 8)
    return body, buffers


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
    body, buffers = body_of(parts)
    counts = [rows] * 5 + [int(lengths.sum()), rows, rows * 5]
    return records(rows, [(count, 0) for count in counts], buffers, body)


def stream_of(rows, each):
    batches = [batch(begin, min(each, rows - begin)) for begin in range(0, rows, each)]
    return schema(*FIELDS) + b"".join(batches) + END


def file_of(stream, footer=b"footer"):
    return b"ARROW1\0\0" + stream + footer + struct.pack("<i", len(footer)) + b"ARROW1"


IMAGES = [
    int32(),
    field("image", STRUCT, children=[field("bytes", BINARY), field("path", STRING)]),
    field(
        "p", STRUCT, children=[field("q", STRUCT, children=[field("r", FIXED_BINARY, struct.pack("<i", 2))])]
    ),
]
ROWS = 5
VALID = b"\x1f"  # five ones


def images(*, nulls=(0, 0, 0, 0, 0, 0), bits=(b"", b"", b"", b"", b"", b""), rows=None, fields=IMAGES):
    """Return five rows of IMAGES; nulls and bits are those of image, its fields, p, q and r."""
    offsets = np.arange(0, 2 * ROWS + 2, 2, dtype="<i4").tobytes()
    parts = [
        b"", np.arange(ROWS, dtype="<i4").tobytes(),
        bits[0], bits[1], offsets, b"00112233445"[: 2 * ROWS], bits[2], offsets, b"aabbccddee",
        bits[3], bits[4], bits[5], b"AABBCCDDEE",
    ]  # fmt: skip
    body, buffers = body_of(parts)
    counts = rows or [ROWS] * 7
    nodes = list(zip(counts, [0, *nulls], strict=True))
    return schema(*fields) + records(ROWS, nodes, buffers, body) + END


def image_rows(present=range(ROWS), paths=range(ROWS), ends=range(ROWS)):
    return [
        {
            "n": k,
            "image": {
                "bytes": b"%d%d" % (k, k) if k in present else b"",
                "path": "abcde"[k] * 2 if k in present and k in paths else "",
            },
            "p": {"q": {"r": b"ABCDE"[k : k + 1] * 2 if k in ends else b""}},
        }
        for k in range(ROWS)
    ]
