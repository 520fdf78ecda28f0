"""Sizes at which compression changes its way: on both sides of each, the records are the same."""

import random
from pathlib import Path

import pytest
from inside import set_constants

import yogadl
from yogadl.errors import CacheFormatError

TEXT = [f"record {n} of the batch and of the epoch, in the order of the shard {n % 7}" for n in range(400)]


def built(storage, version, values, **options):
    """Build a version of one field and check its records; return its sizes."""
    storage.submit({"x": values}, "d", version, **{"codec": "zstd", **options})
    assert storage.fetch("d", version).gather(range(len(values)))["x"] == list(values)
    storage.verify("d", version)
    return storage.field_sizes("d", version)["x"]


def dictionaries(storage):
    return list(Path(storage.location, "d", "parts").glob("*.dict"))


@pytest.mark.parametrize("records", [1, 63, 64, 65, 128, 200])
def test_a_build_holds_its_first_records_until_they_are_enough(storage, monkeypatch, records):
    set_constants(monkeypatch, SAMPLE_RECORDS=64)
    calls = (n for n in range(1))

    def source():
        for value in TEXT[:records]:
            yield {"x": value}
        next(calls)

    storage.submit(source, "d", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=3_000))
    assert storage.fetch("d", "1").gather(range(records))["x"] == TEXT[:records]


@pytest.mark.parametrize("size_bytes", [1, 5_000, 10**6])
def test_a_build_holds_bytes_until_they_are_enough(storage, monkeypatch, size_bytes):
    set_constants(monkeypatch, CODEC_SAMPLE_BYTES=size_bytes)
    storage.submit(
        lambda: ({"x": value} for value in TEXT),
        "d",
        "1",
        codec="zstd",
        build=yogadl.BuildOptions(part_bytes=3_000),
    )
    assert storage.fetch("d", "1").gather(range(len(TEXT)))["x"] == TEXT
    assert bool(dictionaries(storage)) == (size_bytes > 1)


@pytest.mark.parametrize(
    ("records", "workers"),
    [*((records, 0) for records in (1, 31, 32, 33, 63, 64, 1023, 1024, 1025)), (32, 2), (1024, 2)],
)
def test_a_source_of_any_length_is_sampled(storage, records, workers):
    built(storage, "1", (TEXT * 3)[:records], workers=workers)


def test_a_dictionary_knows_records_from_everywhere(storage):
    words = {name: [f"{name}{n} is a word of {name}" for n in range(40)] for name in ("first", "last")}
    values = [
        " ".join(words["first" if n < 2000 else "last"][k * n % 40] for k in range(5)) for n in range(4000)
    ]
    built(storage, "1", values)
    (path,) = dictionaries(storage)
    assert b"is a word of first" in path.read_bytes()
    assert b"is a word of last" in path.read_bytes()


@pytest.mark.parametrize("large_bytes", [0, 2**40])
def test_a_table_of_any_size_names_the_dictionaries(storage, monkeypatch, large_bytes):
    set_constants(monkeypatch, LARGE_TABLE_BYTES=large_bytes)
    built(storage, "1", TEXT, build=yogadl.BuildOptions(part_bytes=3_000))
    assert dictionaries(storage)


def test_an_error_names_the_record_though_others_are_held(storage):
    def source():
        yield from ({"x": value} for value in TEXT[:300])
        yield {"x": 3}

    with pytest.raises(yogadl.errors.UnsupportedDataError, match="record 300"):
        storage.submit(source, "d", "1", codec="zstd")


# The constants, how often the text, how many dictionaries there are, and how large one is at most.
TRAINED = [
    *(({"DICTIONARY_BYTES": most}, 20, 1, most) for most in (300, 1_000, 112_640)),
    *(({"TRAINED_BYTES": most}, 5, None, 112_640) for most in (16, 40, 2**17)),
    *(({"TRAINED_VALUES": most}, 5, int(most == 4_000), 112_640) for most in (31, 32, 4_000)),
]


@pytest.mark.parametrize(("limit", "times", "count", "most_bytes"), TRAINED, ids=str)
def test_dictionaries_are_trained_on_so_much_and_are_so_large(
    storage, monkeypatch, limit, times, count, most_bytes
):
    set_constants(monkeypatch, **limit)
    built(storage, "1", TEXT * times)
    found = dictionaries(storage)
    assert count in (None, len(found))
    assert all(path.stat().st_size <= most_bytes for path in found)


@pytest.mark.parametrize(("most", "codec"), [(1_000, "raw"), (100_000, "zstd")])
def test_auto_looks_at_so_many_bytes(storage, monkeypatch, most, codec):
    set_constants(monkeypatch, AUTO_BYTES=most)
    values = [random.Random(n).randbytes(100) for n in range(20)] + [b"x" * 1000] * 100
    assert built(storage, "1", values, codec="auto").codec == codec


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_dictionary_over_the_limit_is_refused(storage, monkeypatch, more):
    built(storage, "1", TEXT * 5)
    (path,) = dictionaries(storage)
    set_constants(monkeypatch, MAX_DICTIONARY_BYTES=path.stat().st_size + more)
    if more < 0:
        with pytest.raises(CacheFormatError, match="dict has"):
            storage.fetch("d", "1")[0]
    else:
        assert storage.fetch("d", "1")[3]["x"] == TEXT[3]
