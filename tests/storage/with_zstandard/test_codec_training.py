"""Dictionaries of builds in shares: trained on records from everywhere, which are read twice."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from inside import set_constants

import yogadl

RECORDS = 4000


@pytest.fixture(autouse=True)
def time_to_sample(monkeypatch):
    """A busy machine might read few records in the usual time, of which a dictionary is worse."""
    set_constants(monkeypatch, TRAINING_S=100.0)


def text(number):
    """Make a text; those of each quarter of the records have words of their own."""
    words = [f"{'abcd'[4 * number // RECORDS] * 9}{n}" for n in range(60)]
    return " ".join(words[k * number % 60] for k in range(1, 40))


class Items:
    """Records with random access, each computed when it is read."""

    reads: ClassVar = []  # also of copies

    def __init__(self, count=RECORDS, seconds=0.0, bad=()):
        self.count, self.seconds, self.bad = count, seconds, bad
        self.reads.clear()

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.reads.append(number)
        if number in self.bad:
            raise ValueError("it can't be read")
        time.sleep(self.seconds)
        return {"text": text(number), "n": number}


def build_with_workers(storage, source, version, **options):
    storage.submit(source, "d", version, codec="zstd", workers=2, **options)


def build_with_an_engine(storage, source, version, **options):
    with ThreadPoolExecutor(2) as pool:
        storage.submit(source, "d", version, codec="zstd", build=yogadl.BuildOptions(engine=pool), **options)


def build_by_tasks(storage, source, version):
    build = storage.begin("d", version, source=source, codec="zstd")
    for partition in reversed(range(build.partitions)):
        build.write(partition)
    build.commit()


WAYS = [build_with_workers, build_with_an_engine, build_by_tasks]


def size(storage, version):
    return storage.field_sizes("d", version)["text"].stored_bytes


def dictionary_files(storage):
    return list(Path(storage.location, "d", "parts").glob("*.dict"))


@pytest.mark.parametrize("build", WAYS)
@pytest.mark.usefixtures("forked_workers")
def test_shares_compress_as_well_as_one_process(storage, build):
    storage.submit(Items(), "d", "one", codec="zstd")
    build(storage, Items(), "shares")
    assert size(storage, "one") >= 0.97 * size(storage, "shares")
    assert storage.info("d", "one").fingerprint == storage.info("d", "shares").fingerprint


def test_a_raw_build_reads_each_record_once(storage):
    source = Items()
    with ThreadPoolExecutor(2) as pool:
        storage.submit(source, "d", "1", build=yogadl.BuildOptions(engine=pool))
    assert len(source.reads) <= RECORDS + 2  # the first tells the structure


def test_tasks_sample_the_source_once(storage):
    source = Items()
    build_by_tasks(storage, source, "1")
    assert RECORDS < len(source.reads) <= 2 * RECORDS + 9


@pytest.mark.parametrize("build", [build_with_an_engine, build_by_tasks])
def test_a_slow_source_is_sampled_for_a_time(storage, monkeypatch, build):
    set_constants(monkeypatch, TRAINING_S=1.0)
    source = Items(seconds=0.001)
    build(storage, source, "1")
    assert RECORDS + 64 <= len(source.reads) < RECORDS + 2000
    assert len(dictionary_files(storage)) == 1


def test_a_source_that_is_too_slow_is_not_sampled(storage, monkeypatch):
    set_constants(monkeypatch, TRAINING_S=0.0)
    source = Items()
    build_with_an_engine(storage, source, "1")
    assert len(source.reads) < RECORDS + 100
    assert dictionary_files(storage)  # of the first share


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 64, 65, 200])
@pytest.mark.parametrize("build", [build_with_an_engine, build_by_tasks])
def test_sources_of_any_length(storage, build, count):
    build(storage, Items(count), "1")
    assert storage.fetch("d", "1").gather(range(count))["text"] == [text(n) for n in range(count)]


def test_records_that_can_not_be_read_are_left_out_as_ever(storage):
    bad = {0, 1, 125, 3999}
    build_with_an_engine(storage, Items(bad=bad), "1", records=yogadl.RecordOptions(on_error="skip"))
    ref = storage.fetch("d", "1")
    assert len(ref) == RECORDS - len(bad)
    assert {one["index"] for one in ref.metadata["left_out"]["records"]} == bad
    build_with_an_engine(storage, Items(), "2")
    assert size(storage, "1") <= 1.03 * size(storage, "2")


def test_the_error_of_a_record_is_that_of_the_build(storage):
    with pytest.raises(ValueError, match="it can't be read") as caught:
        build_with_an_engine(storage, Items(bad={3000}), "1")
    assert any("record 3000" in note for note in caught.value.__notes__)
