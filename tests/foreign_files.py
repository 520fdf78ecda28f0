"""Read files of other libraries in memory, as a storage does; damage them; write them as specified."""

import io
import json
import struct
import tarfile

import numpy as np
import pytest
from inside import FileReader, ForeignFile, Lines, Places

from yogadl.errors import UnsupportedDataError

WINDOWS = (64, 512, 2**22)


def reader_of(content, window_bytes=2**22, *, name="data", siblings=()):
    """Return the reader of a file of this content, which has `siblings`, a dict of names and contents."""

    def fetch(position, length):
        assert 0 <= position <= position + length <= len(content)
        return content[position : position + length]

    def sibling(other):
        return reader_of(siblings[other], window_bytes, name=other) if other in siblings else None

    file = ForeignFile(f"/folder/{name}", len(content), "1")
    return FileReader(file, fetch, window_bytes=window_bytes, sibling=sibling)


def read(kind, content, *options, kind_is_known=False, **others):
    """Return the format, which this file decides unless it is known, and the records of the file."""
    reader = reader_of(content, *options, **others)
    if not kind_is_known:
        kind = kind.of_first_file(reader)
    fields = kind.spec.fields
    records = []
    for batch in kind.batches(reader):
        columns = [_values(content, field.leaf, column) for field, column in zip(fields, batch, strict=True)]
        assert len({len(column) for column in columns}) == 1
        assert len(columns[0])
        records += zip(*columns, strict=True)
    return kind, list(map(kind.spec.assemble, records))


def records_of(kind, content, *options, **others):
    """Return all records of a file: what a cache would store of them."""
    return read(kind, content, *options, **others)[1]


def _values(content, leaf, column):
    if not isinstance(column, Places):
        if leaf.is_fixed:
            assert (column.dtype, column.shape[1:]) == (leaf.numpy_dtype, leaf.shape)
        return list(column)
    values = []
    assert column.positions.dtype == column.lengths.dtype == np.int64
    assert (np.diff(column.positions) >= 0).all()
    places = zip(column.positions.tolist(), column.lengths.tolist(), strict=True)
    for k, (position, length) in enumerate(places):
        assert 0 <= position <= position + length <= len(content)
        value = content[position : position + length]
        if leaf.is_numeric:
            rank, *sizes = column.shapes[k].tolist()
            assert leaf.shape is None or rank == len(leaf.shape)
            value = np.frombuffer(value, leaf.numpy_dtype).reshape(sizes[:rank])
        elif leaf.dtype == "str":
            value = value.decode(errors="replace")
        values.append(value)
    return values


def refusal(kind, content, *options, **others):
    """Return the text of the error with which a file is refused."""
    with pytest.raises(UnsupportedDataError) as caught:
        records_of(kind, content, *options, **others)
    return str(caught.value)


def outcome_of(kind, content, window_bytes=64, **options):
    """Return the records of a file that may be damaged, or None if it is refused with its place."""
    try:
        return records_of(kind, content, window_bytes, **options)
    except UnsupportedDataError as error:
        if not str(error).startswith("/folder/data"):
            raise
        return None


def fuzz(kind, content, *, name="data", siblings=(), rounds=1000):
    """Damage a file, or one of its siblings: it is refused, or its records lie inside the file."""
    known = read(kind, content, name=name, siblings=siblings)[0]
    files = {name: content, **dict(siblings)}
    outcomes = set()
    for seed, chosen in enumerate(files):
        for k, changed in enumerate(damaged(files[chosen], rounds // len(files), seed)):
            spoiled = files | {chosen: changed}
            options = {"name": name, "siblings": spoiled}
            for found in (known, type(kind)()):
                records = outcome_of(
                    found, spoiled[name], WINDOWS[k % 3], kind_is_known=found is known, **options
                )
                outcomes.add(records is None)
    assert outcomes >= ({False} if isinstance(kind, Lines) else {True, False})


def damaged(content, count, seed=1):
    """Yield a file damaged in many ways: bytes flipped or set, numbers set, and pieces cut out or doubled."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        changed = bytearray(content)
        for _ in range(1 + k % 3):
            # Most formats have their numbers in front.
            end = len(changed) if rng.random() < 0.7 else min(len(changed), 256)
            begin, length = int(rng.integers(end + 1)), int(rng.integers(1, 40))
            piece, way = changed[begin : begin + length], rng.integers(6)
            if way == 0:
                del changed[begin : begin + length]
            elif way == 1:
                changed[begin:begin] = piece
            elif way == 2:
                del changed[begin:]
            elif way == 3:
                odd = [b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", b"\1\0\0\0"][rng.integers(4)]
                changed[begin : begin + 4] = odd[: len(piece)]
            elif piece:
                changed[begin] = piece[0] ^ 1 << int(rng.integers(8)) if way == 4 else int(rng.integers(256))
        yield bytes(changed)


def npy_of(array, **options):
    """Return a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


# Codes of dtypes of Megatron.
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def megatron_index(lengths, pointers, documents, *, code=4, magic=b"MMIDIDX\0\0", version=1, modes=b""):
    """Return an index of Megatron."""
    head = magic + struct.pack("<QBQQ", version, code, len(lengths), len(documents))
    columns = np.array(lengths, "<i4"), np.array(pointers, "<i8"), np.array(documents, "<i8")
    return b"".join([head, *(column.tobytes() for column in columns), modes])


def megatron_of(sequences, dtype="int32", **options):
    """Return a file of Megatron and its index."""
    arrays = [np.asarray(sequence, dtype) for sequence in sequences]
    pointers, documents = np.cumsum([0, *(array.nbytes for array in arrays)])[:-1], range(len(arrays) + 1)
    index = megatron_index(list(map(len, arrays)), pointers, documents, code=CODES[dtype], **options)
    return b"".join(array.tobytes() for array in arrays), index


# Bytes of the columns of MDS that have a fixed size; others name theirs.
MDS_SIZES = {"int": 8, "float32": 4, "uint8": 1, "ndarray:float32:2,3": 24, "ndarray:int16:2": 4}


def mds_config(columns, **changes):
    return {
        "column_names": list(columns), "column_encodings": list(columns.values()),
        "column_sizes": list(map(MDS_SIZES.get, columns.values())),
        "compression": None, "format": "mds", "hashes": [], "size_limit": 2**26, "version": 2, **changes,
    }  # fmt: skip


def mds_of(columns, samples, **changes):
    """Return a shard of MDS; each sample is the bytes of its columns."""
    config = mds_config(columns, **changes)
    bodies = []
    for sample in samples:
        sized = zip(sample, config["column_sizes"], strict=True)
        varying = [len(value) for value, size in sized if size is None]
        bodies.append(struct.pack(f"<{len(varying)}I", *varying) + b"".join(sample))
    text = json.dumps(config).encode()
    offsets = np.cumsum([4 * (len(bodies) + 2) + len(text), *map(len, bodies)]).astype("<u4")
    return struct.pack("<I", len(bodies)) + offsets.tobytes() + text + b"".join(bodies)


def tar_of(members, form=tarfile.GNU_FORMAT):
    """Return the archive that Python's tarfile makes of names, contents and perhaps kinds."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, content, *kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind[0] if kind else tarfile.REGTYPE, len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def tar_header(name, size, kind=b"0", *, prefix=b"", magic=b"ustar\x0000", size_field=None, negative=False):
    """Return the header of a member of a tar archive."""
    size_field = b"%011o\0" % size if size_field is None else size_field
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size_field + b"00000000000\0"
    tail = kind + bytes(100) + magic + bytes(64) + b"0000000\0" * 2 + prefix.ljust(155, b"\0") + bytes(12)
    total = sum(byte - 256 * (negative and byte > 127) for byte in head + b" " * 8 + tail)
    header = head + b"%06o\0 " % (total & 0o777777) + tail
    assert len(header) == 512
    return header


def tar_member(name, content, kind=b"0", **header):
    """Return a member of a tar archive: its header, its content, and zeros up to a whole block."""
    return tar_header(name, len(content), kind, **header) + content + bytes(-len(content) % 512)


def pax_record(keyword, value):
    """Return a record of a pax header, which begins with its own length."""
    rest = b" %b=%b\n" % (keyword, value)
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return str(length).encode() + rest


def _eight_bits(crc):
    for _ in range(8):
        crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc


_BYTES = list(map(_eight_bits, range(256)))


def crc32c_slowly(content):
    """Return the CRC-32C of some bytes, byte by byte."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _BYTES[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _masked(content):
    crc = crc32c_slowly(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord_of(values):
    """Return a TFRecord file."""
    return b"".join(
        length + _masked(length) + value + _masked(value)
        for value in values
        for length in [struct.pack("<Q", len(value))]
    )


def varint(number):
    """Return a number as protobuf writes it."""
    number &= 2**64 - 1
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def field(number, content):
    """Return a field of a message of protobuf: bytes, text, or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(key, feature):
    """Return an entry of the map of an Example."""
    return field(1, field(1, key) + field(2, feature))


def example_of(*entries, **features):
    """Return an Example of these entries, and of features that are named."""
    return field(1, b"".join([*entries, *(entry(name.encode(), each) for name, each in features.items())]))


def bytes_feature(*values):
    return field(1, b"".join(field(1, value) for value in values))


def float_feature(values, *, is_packed=True):
    if is_packed:
        return field(2, field(1, np.asarray(values, "<f4").tobytes()))
    return field(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in values))


def int64_feature(values, *, is_packed=True):
    if is_packed:
        return field(3, field(1, b"".join(map(varint, values))))
    return field(3, b"".join(b"\x08" + varint(value) for value in values))
