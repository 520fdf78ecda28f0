"""Read foreign files that lie in memory, and write small ones by their specifications."""

import struct

import indexed_files
import numpy as np

from yogadl.errors import UnsupportedDataError

WINDOWS = (64, 512, 4 * 2**20)


def reader_of(content, window_bytes=4 * 2**20):
    """Return a reader of a file."""
    return indexed_files.reader_of(content, window_bytes=window_bytes, name="file")


def records_of(form, content, window_bytes=4 * 2**20):
    """Return all records of a file: what a cache would store of them."""
    return indexed_files.records_of(form, content, window_bytes=window_bytes, name="file")[1]


def outcome_of(form, content, window_bytes=64):
    """Return the records of a file that may be damaged, or None if it is refused."""
    try:
        return records_of(form, content, window_bytes)
    except UnsupportedDataError as error:
        if not str(error).startswith("/folder/file, byte "):
            raise
        return None


def damaged(content, count, seed=1):
    """Yield a file damaged in many ways: bytes flipped or set, and pieces cut out, doubled or moved."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        changed = bytearray(content)
        for _ in range(1 + k % 3):
            begin, length = int(rng.integers(len(changed) + 1)), int(rng.integers(1, 40))
            piece = changed[begin : begin + length]
            way = rng.integers(5)
            if way == 0:
                del changed[begin : begin + length]
            elif way == 1:
                changed[begin:begin] = piece
            elif way == 2:
                del changed[begin:]
            elif begin < len(changed):
                changed[begin] = (
                    changed[begin] ^ 1 << int(rng.integers(8)) if way == 3 else int(rng.integers(256))
                )
        yield bytes(changed)


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


def crc32c_slowly(content):
    """Return the CRC-32C of some bytes, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
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


def example_of(*entries):
    """Return an Example of these entries."""
    return field(1, b"".join(entries))


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
