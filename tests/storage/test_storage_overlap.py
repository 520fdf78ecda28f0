"""A source is read on while what it gave before is encoded and written, and nothing is mixed up by that."""

import threading

import numpy as np
import pytest
from inside import CacheWriter

import yogadl
from yogadl.errors import UnsupportedDataError

CHUNKS = 1, 1 + 16, 1 + 16 + 256  # after so many records, small ones, one is handed on


@pytest.fixture
def writing_waits(monkeypatch):
    """Let each chunk be written only when the test says so, or nobody did for long."""
    may_write = threading.Semaphore(0)
    write = CacheWriter._write

    def waiting(self, columns):
        waits.append(may_write.acquire(timeout=60))
        write(self, columns)

    waits: list[bool] = []
    monkeypatch.setattr(CacheWriter, "_write", waiting)
    yield may_write
    assert set(waits) == {True}


def test_the_next_records_are_read_while_those_before_are_written(built, writing_waits):
    def records():
        for number in range(300):
            if number in CHUNKS:
                writing_waits.release()  # what was given just before
            # An object, as the first 1024 records without one are read before any is written.
            yield {"x": np.full(number % 3, number), "o": {number}}
        writing_waits.release()

    ref = built(records, records=yogadl.RecordOptions(allow_pickle=True))
    assert [record["x"].tolist() for record in ref] == [[number] * (number % 3) for number in range(300)]


def test_an_object_is_stored_as_it_was_when_it_was_read(built, writing_waits):
    def records():
        value = {0}
        yield {"o": value}
        value.add(1)  # before the first is written
        writing_waits.release()
        yield {"o": value}
        writing_waits.release()

    assert [record["o"] for record in built(records, records=yogadl.RecordOptions(allow_pickle=True))] == [
        {0},
        {0, 1},
    ]


@pytest.mark.parametrize("bad", [*CHUNKS, 299])
def test_what_is_wrong_with_a_record_is_told_by_its_number(built, bad):
    def records():
        for number in range(300):
            yield {"x": np.zeros(2 if number != bad else (2,) * 9)}

    with pytest.raises(UnsupportedDataError, match=f"record {bad}\\b"):
        built(records)


def test_what_the_source_raises_while_records_are_written_is_what_is_told(built, writing_waits):
    def records():
        yield {"o": {0}}
        writing_waits.release()
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        built(records, records=yogadl.RecordOptions(allow_pickle=True))
