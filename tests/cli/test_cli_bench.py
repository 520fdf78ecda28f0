"""bench: that it measures what it says."""

import numpy as np
import pytest
from inside import _bench, set_constants

import yogadl


@pytest.fixture
def bench(run):
    return lambda *words: run("bench", *words, "--seconds", "0.02")


def test_it_shows_three_ways_to_read(bench, squares):
    ended = bench("squares", "2")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "squares 2: 1,000 records, 8 B each in memory; batches of 256."
    assert lines[2].split() == ["records/s", "GB/s", "of", "RAM", "from", "disk"]
    assert [line[:8] for line in lines[3:6]] == ["shuffled", "in order", "numpy in"]
    assert max(map(len, lines)) <= 82
    assert len(lines[2]) == len(lines[3]) == len(lines[4])  # the last column ends at the right


def test_it_shows_threads_and_workers_by_wish(bench, squares):
    ended = bench("squares", "2", "--threads", "2", "--workers", "1")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert [line[:19] for line in lines[3:6]] == [
        "shuffled           ",
        "shuffled, 2 threads",
        "shuffled, 1 workers",
    ]
    found = bench("squares", "2", "--threads", "3", "--json").json
    assert found["shuffled_threads"]["records"] > 0
    assert "shuffled_workers" not in found


def test_json_has_stable_keys(bench, squares):
    found = bench("squares", "2", "--batch", "100", "--json").json
    assert (found["id"], found["version"], found["batch"], found["records"]) == ("squares", "2", 100, 1_000)
    assert (found["record_bytes"], found["sample_records"]) == (8, 1_000)
    for way in ("shuffled", "in_order", "ram"):
        one = found[way]
        assert one["records"] % 100 == 0
        assert one["elapsed_s"] >= 0.02
        assert one["records_per_s"] == pytest.approx(one["records"] / one["elapsed_s"])
        assert one["bytes_per_s"] == pytest.approx(8 * one["records_per_s"])
    assert found["ram"]["share_of_ram"] == 1


@pytest.mark.parametrize(
    ("records", "batch", "batches", "counted"),
    [(10, 4, 3, 10), (10, 4, 4, 14), (10, 99, 3, 30), (1, 1, 5, 5)],
)
def test_short_batches_are_counted_as_what_they_are(records, batch, batches, counted, monkeypatch):
    monkeypatch.setattr(_bench.time, "perf_counter", iter([0.0, *[0.1] * (batches - 1), 1.0]).__next__)
    measured = _bench._measure(iter(range(99)), records, batch, 1.0, _bench.Bar("measuring", 1.0, "s"))
    assert (measured.records, measured.elapsed_s) == (counted, 1.0)


def test_the_sample_is_the_first_records_copied_as_a_cache_copies(storage, monkeypatch):
    records = [
        {"n": n, "text": f"ä{n}", "raw": bytes([n]) * n, "row": np.arange(n % 3), "f": np.zeros((2, 2))}
        for n in range(50)
    ]
    storage.submit(records, "d", "1")
    ref = storage.fetch("d", "1")
    sample = _bench._take_sample(ref)
    batch = next(sample.batches(8))
    numbers = batch[0].tolist()
    assert len(set(numbers)) == 8
    for column, name in zip(batch[1:], ["text", "raw", "row", "f"], strict=True):
        for value, number in zip(column, numbers, strict=True):
            assert np.array_equal(value, records[number][name])
    assert not any(np.shares_memory(row, whole) for row in batch[3] for whole in sample.columns[3])
    assert sample.record_bytes > 40
    set_constants(monkeypatch, SAMPLE_BYTES=ref.record_bytes * 7)
    assert _bench._take_sample(ref).records == 7


def test_all_kinds_of_fields_can_be_measured(bench, storage):
    storage.submit(
        [{"text": "a" * n, "raw": b"b", "row": np.arange(n), "x": {"y": 1}} for n in range(9)], "d", "1"
    )
    assert bench("d", "1").code == 0


def test_what_came_from_the_disk_makes_it_cold(bench, squares, monkeypatch):
    assert bench("squares", "2").out.splitlines()[-1].startswith("Warm: ")
    blocks = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(_bench, "_read_blocks", blocks.__next__)
    monkeypatch.setattr(_bench.sys, "platform", "linux")
    out = bench("squares", "2").out
    assert "512 MB\n" in out
    assert out.splitlines()[-1].startswith("Partly cold: ")


def test_where_the_disk_can_not_be_watched_it_says_so(bench, squares, monkeypatch):
    monkeypatch.setattr(_bench.sys, "platform", "darwin")
    out = bench("squares", "2").out
    assert out.splitlines()[-1].startswith("This system does not report whether")
    assert bench("squares", "2", "--json").json["shuffled"]["disk_bytes"] is None


def test_pickled_fields_are_read_by_wish_only(bench, storage):
    storage.submit([{"x": {1, 2}}] * 3, "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    ended = bench("d", "1")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert bench("d", "1", "--allow-pickle").code == 0
