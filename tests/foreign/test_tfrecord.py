"""The records of TFRecord files, written by hand."""

import gzip
import re
import struct
import zlib

import numpy as np
import pytest
from foreign_files import WINDOWS, crc32c_slowly, outcome_of, records_of, refusal, tfrecord_of
from inside import TFRecord

RNG = np.random.default_rng(8)
# At and around the ends of windows of 64 and 512 bytes; a record takes 16 bytes more than its data.
VALUES = [
    RNG.bytes(size)
    for size in [0, 1, 2, 3, 4, 5, 0, 29, 46, 47, 48, 49, 64, 65, 495, 496, 497, 512, 513, 1000, 0, 700, 1]
]


@pytest.mark.parametrize("window", [7, *WINDOWS])
@pytest.mark.parametrize("checks_data", [True, False])
def test_records_of_all_sizes(window, checks_data):
    for values in (VALUES, VALUES[:1], VALUES[1:2], [], VALUES[::-1]):
        assert records_of(TFRecord(checks_data=checks_data), tfrecord_of(values), window) == values


def test_headers_end_wherever_a_window_ends():
    for size in range(64, 96):
        values = [bytes(size), b"next", b""]
        assert records_of(TFRecord(), tfrecord_of(values), 128) == values


@pytest.mark.parametrize("window", WINDOWS)
def test_a_flipped_bit_of_any_byte_is_refused(window):
    content = tfrecord_of([b"a" * 90, b"", b"bcd"])
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        assert outcome_of(TFRecord(), bytes(changed), window) is None
        # Unread data can't be compared.
        is_read = not (12 <= position < 106 or 118 <= position < 122 or position >= 134)
        assert (outcome_of(TFRecord(checks_data=False), bytes(changed), window) is None) == is_read


def header_of(length):
    packed = struct.pack("<Q", length)
    return packed + tfrecord_of([packed])[20:24]


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32, 100])
def test_a_length_that_reaches_behind_the_end_is_refused(length):
    said = refusal(TFRecord(), tfrecord_of([b"x"]) + header_of(length) + bytes(40))
    assert re.search(f"byte 17: a record of {length} bytes .* ends at 69", said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(tfrecord_of(VALUES)), "gzip.*gunzip.*compression_type"),
        (zlib.compress(tfrecord_of(VALUES)), "zlib.*zlib.decompress.*compression_type"),
        (b"no TFRecord file at all", "this is no TFRecord file"),
        (b"short", "5 bytes are left"),
        (tfrecord_of([b"x"]) + bytes(16), "byte 17: the checksum of a record's length differs"),
    ],
)
def test_what_is_no_tfrecord_file_is_refused_with_the_way_out(content, said):
    assert re.search(said, refusal(TFRecord(), content))


def test_a_length_that_looks_like_gzip_or_zlib_is_a_length():
    for length in (0x88B1F, 0x9C78):
        content = header_of(length) + bytes(length + 4)
        assert records_of(TFRecord(checks_data=False), content) == [bytes(length)]


def test_the_checksums_of_the_tests_are_right():
    assert crc32c_slowly(b"123456789") == 0xE3069283
