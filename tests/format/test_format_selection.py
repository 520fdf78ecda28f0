"""The file of a selection: small, read as it was written, and believed in nothing."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import ArrayFile, Selection, most_selection_bytes, read_selection

from yogadl.errors import CacheFormatError

NAME = "ab" * 32


def file_of(array, **changes):
    """Return a file whose checksum is right, whatever else it says."""
    document = {
        "name": NAME,
        "records": 100,
        "selected": 0 if array is None else len(array),
        "sha256": hashlib.sha256(b"" if array is None else array.tobytes()).hexdigest(),
    }
    arrays = {} if array is None else {"selection": array}
    return ArrayFile(arrays, document | changes).to_bytes()


def check(records, indices):
    selection = Selection(NAME, records, np.array(indices, np.int64))
    content = selection.to_bytes()
    assert len(content) <= most_selection_bytes(records) == most_selection_bytes(0) + (records + 7) // 8
    found = read_selection(content, "it")
    assert (found.name, found.records) == (NAME, records)
    assert found.indices.tolist() == list(indices)
    assert found.indices.dtype == np.int64
    assert found.indices.flags.writeable
    return content


@pytest.mark.parametrize("records", [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000, 100_003])
@pytest.mark.parametrize("step", [1, 2, 63, 64, 65, 10_000])
def test_what_is_written_is_read(records, step):
    check(records, range(0, records, step))
    check(records, range(records)[-1:])
    check(records, [])


@given(st.data(), st.integers(0, 300))
def test_any_selection_is_read_as_it_was_written(data, records):
    mask = data.draw(st.lists(st.booleans(), min_size=records, max_size=records))
    check(records, np.flatnonzero(mask).tolist())


def test_it_is_a_bit_a_record_or_an_index_of_each_selected_whichever_is_less():
    records = 6400
    kinds = {}
    for selected in (0, 99, 100, 101, 6400):
        array = ArrayFile.from_buffer(check(records, range(selected)), "it").arrays["selection"]
        kinds[selected] = array.dtype.name, array.nbytes
    assert kinds == {
        0: ("int64", 0),
        99: ("int64", 792),
        100: ("uint8", 800),
        101: ("uint8", 800),
        6400: ("uint8", 800),
    }


def test_half_of_a_million_take_a_bit_a_record():
    assert len(check(1_000_000, range(0, 1_000_000, 2))) < 126_000


def test_no_cut_and_no_changed_byte_is_taken_for_another_selection():
    for indices in (range(0, 100, 3), [5, 77]):
        content = check(100, indices)
        for length in range(len(content)):
            with pytest.raises(CacheFormatError):
                read_selection(content[:length], "it")
        for at in range(len(content)):
            for flip in (1, 0x80, 0xFF):
                changed = bytearray(content)
                changed[at] ^= flip
                try:
                    found = read_selection(bytes(changed), "it")
                except CacheFormatError:
                    continue
                # What is only text, or how the header is written, says nothing else of the indices.
                assert found.indices.tolist() == list(indices)


SMALL = np.zeros(13, np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff" * 100,
        (2**40).to_bytes(8, "little") + b"{}",
        file_of(None),
        file_of(SMALL, selected=1),
        file_of(SMALL, selected=False),
        file_of(SMALL, selected=0.0),
        file_of(SMALL, selected=None),
        file_of(SMALL, selected=0, records=-3),
        file_of(SMALL, selected=0, records=96),
        file_of(SMALL, selected=0, records=105),
        file_of(SMALL, selected=0, records=2**80),
        file_of(SMALL, selected=0, records=True),
        file_of(SMALL, selected=0, records="100"),
        file_of(SMALL, selected=0, name=None),
        file_of(SMALL, selected=0, name=[NAME]),
        file_of(SMALL, selected=0, sha256=None),
        file_of(SMALL, selected=0, sha256="0" * 64),
        file_of(SMALL.reshape(1, 13), selected=0),
        file_of(np.zeros((), np.uint8).reshape(1)[:0].reshape(0, 13), selected=0),
        file_of(np.zeros(0, np.uint8), records=-7),
        file_of(np.zeros(0, np.int64), records=-1),
        file_of(np.array([-1, 5])),
        file_of(np.array([5, 100])),
        file_of(np.array([5, 2**62])),
        file_of(np.array([5, 5])),
        file_of(np.array([6, 5])),
        file_of(np.array([0, 2**63 - 1, -(2**63), -1, 5])),  # whose differences wrap
        file_of(np.array([[1], [2]])),
        file_of(np.array([1, 2], np.uint64)),
        file_of(np.array([1, 2]), selected=3),
    ],
)
def test_what_contradicts_itself_is_refused(content):
    with pytest.raises(CacheFormatError):
        read_selection(content, "it")


@pytest.mark.parametrize("document", [None, [], 3, "text", {}])
def test_a_header_that_says_something_else_is_refused(document):
    content = ArrayFile({"selection": SMALL}, {}).to_bytes()
    header = json.dumps({"__metadata__": {"yogadl": json.dumps(document)}, "selection": {
        "dtype": "U8", "shape": [13], "data_offsets": [0, 13]}}).encode()  # fmt: skip
    for text in (content, len(header).to_bytes(8, "little") + header + bytes(13)):
        with pytest.raises(CacheFormatError):
            read_selection(text, "it")
