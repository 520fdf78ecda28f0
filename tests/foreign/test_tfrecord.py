"""The records of TFRecord files, written by hand."""

import gzip
import pickle
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from foreign_files import WINDOWS, crc32c_slowly, damaged, outcome_of, reader_of, records_of, tfrecord_of
from inside import TFRecord, crc32c, tfrecord_module

from yogadl.errors import UnsupportedDataError

RNG = np.random.default_rng(8)
# At and around the ends of windows of 64 and 512 bytes; a record takes 16 bytes more than its data.
VALUES = [
    RNG.bytes(size)
    for size in [0, 1, 2, 3, 4, 5, 0, 29, 46, 47, 48, 49, 64, 65, 495, 496, 497, 512, 513, 1000, 0, 700, 1]
]


@pytest.fixture(params=["by numpy", "by any"], autouse=True)
def way_of_sums(request, monkeypatch):
    """Run each test with numpy's checksums, and with those of google_crc32c where it is installed."""
    if request.param == "by numpy":
        monkeypatch.setattr(crc32c, "_library", lambda: None)


@pytest.mark.parametrize("window", [7, *WINDOWS])
@pytest.mark.parametrize("checks_data", [True, False])
def test_records_of_all_sizes(window, checks_data):
    for values in (VALUES, VALUES[:1], VALUES[1:2], [], VALUES[::-1]):
        assert records_of(TFRecord(checks_data=checks_data), tfrecord_of(values), window) == values


def test_headers_end_wherever_a_window_ends():
    for size in range(64, 96):
        assert records_of(TFRecord(), tfrecord_of([bytes(size), b"next", b""]), 128) == [
            bytes(size),
            b"next",
            b"",
        ]


def test_a_batch_has_the_records_that_begin_in_one_window():
    counts = []
    for (places,) in TFRecord().batches(reader_of(tfrecord_of(VALUES * 3), 512)):
        assert (places.positions[0] - 12) // 512 == (places.positions[-1] - 12) // 512
        counts.append(len(places.positions))
    assert sum(counts) == len(VALUES) * 3
    assert len(counts) > 10


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


def test_a_file_that_is_cut_anywhere_is_refused():
    content = tfrecord_of([b"a" * 90, b"bcd"])
    ends = {0: [], 106: [b"a" * 90], len(content): [b"a" * 90, b"bcd"]}
    for end in range(len(content) + 1):
        for window in WINDOWS:
            assert outcome_of(TFRecord(), content[:end], window) == ends.get(end)


def header_of(length):
    packed = struct.pack("<Q", length)
    return packed + tfrecord_of([packed])[20:24]


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32, 100])
def test_a_length_that_reaches_behind_the_end_is_refused(length):
    with pytest.raises(UnsupportedDataError, match=f"byte 17: a record of {length} bytes .* ends at 69"):
        records_of(TFRecord(), tfrecord_of([b"x"]) + header_of(length) + bytes(40))


def test_values_that_are_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(tfrecord_module, "MAX_LEAF_BYTES", 10)
    assert records_of(TFRecord(), tfrecord_of([bytes(10)])) == [bytes(10)]
    with pytest.raises(UnsupportedDataError, match="a record has 11 bytes, more than 10"):
        records_of(TFRecord(), tfrecord_of([bytes(10), bytes(11)]))


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
    with pytest.raises(UnsupportedDataError, match=said):
        records_of(TFRecord(), content)


def test_a_length_that_looks_like_gzip_or_zlib_is_a_length():
    for length in (0x88B1F, 0x9C78):
        content = header_of(length) + bytes(length + 4)
        assert records_of(TFRecord(checks_data=False), content) == [bytes(length)]


def test_damaged_files_are_refused_or_read_within_the_file():
    outcomes = [outcome_of(TFRecord(), changed) for changed in damaged(tfrecord_of(VALUES), 150)]
    outcomes += [
        outcome_of(TFRecord(checks_data=False), c) for c in damaged(tfrecord_of(VALUES), 150, seed=2)
    ]
    # Without a look at the data, a part of it may be any bytes.
    assert outcomes.count(None) > 250
    assert len(outcomes) - outcomes.count(None) > 15


@pytest.mark.parametrize(
    ("name", "matches"),
    [
        ("a.tfrecord", True),
        ("a.tfrecords", True),
        ("a.tfrec", True),
        ("train.tfrecord-00000-of-01024", True),
        ("train.tfrecord-00000-of-01024.tmp", False),
        ("train-00000-of-01024", False),
        ("a.tfrecord.gz", False),
        ("tfrecord", False),
    ],
)
def test_names(name, matches):
    assert TFRecord().matches(name) is matches


def test_it_pickles_and_is_replaced():
    form = TFRecord({"a": "int64"})
    assert form.spec.keys() == ["a"]
    assert pickle.loads(pickle.dumps(form)) == form
    assert replace(form, checks_data=False) == TFRecord({"a": "int64"}, checks_data=False)
    assert TFRecord().of_first_file(reader_of(b"")) == TFRecord()


def test_the_checksums_of_the_tests_are_right():
    assert crc32c_slowly(b"123456789") == 0xE3069283
