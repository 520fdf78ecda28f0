"""What builds a version in a bucket returns the reference to it without a request; cached builds once."""

import numpy as np
import pytest
from inside import Catalogue
from processes import processes

import yogadl

ROWS = 1_009


def facts(ref):
    return type(ref), ref.fingerprint, len(ref), ref.spec, ref.metadata, ref.lineage, repr(ref)


def counted_builds(proxy, monkeypatch):
    """Return a list, to which each build adds the number of requests before its reference is made."""
    counts = []
    make = Catalogue.built

    def made(*arguments, **options):
        counts.append(len(proxy.requests))
        return make(*arguments, **options)

    monkeypatch.setattr(Catalogue, "built", made)
    return counts


@pytest.mark.parametrize("has_mirror", [True, False])
def test_a_reference_costs_no_request(broken, tmp_path, monkeypatch, has_mirror):
    place, proxy = broken
    storage = place.storage(mirror=tmp_path / "mirror" if has_mirror else None)
    requests_of_build = counted_builds(proxy, monkeypatch)
    builds = [
        lambda: storage.submit(
            {"x": np.arange(ROWS)}, "d", "1", build=yogadl.BuildOptions(metadata={"by": "me"})
        ),
        lambda: storage.append({"x": np.arange(7)}, "d", "2", base_version="1"),
        lambda: storage.compact("d", "2", "3"),
        lambda: storage.recompress("d", "3", "4", codec=None),
    ]
    for number, build in enumerate(builds, 1):
        ref = build()
        found = facts(ref)
        assert len(proxy.requests) == requests_of_build[-1] > 0
        fetched = storage.fetch("d", f"{number}")
        assert found == facts(fetched)
        assert np.array_equal(ref.gather([6, 0])["x"], fetched.gather([6, 0])["x"])
    assert len(requests_of_build) == len(builds)


def test_adopt_and_refresh_return_references_without_a_request(broken, monkeypatch):
    place, proxy = broken
    storage = place.storage()
    bucket = place.open()
    requests_of_build = counted_builds(proxy, monkeypatch)
    bucket.put("raw/a.jsonl", b"0\n1\n")
    ref = storage.adopt(f"{place.url}/raw/*.jsonl", "d", "1")
    first = facts(ref)
    assert len(proxy.requests) == requests_of_build[-1]
    same = facts(storage.refresh("d", "1", "2"))
    assert len(proxy.requests) == requests_of_build[-1]
    bucket.put("raw/b.jsonl", b"2\n")
    other = facts(storage.refresh("d", "1", "2"))
    assert len(proxy.requests) == requests_of_build[-1]
    assert first == same == facts(storage.fetch("d", "1"))
    assert other == facts(storage.fetch("d", "2"))


class Noted:
    """Records of which each read is noted in a file, by any process."""

    __yogadl_version__ = "of 2026"

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 5

    def __getitem__(self, number):
        with self.path.open("a") as file:
            file.write(f"{number}\n")
        return number


def ask(place, folder, machine):
    ref = place.storage(mirror=folder / machine).cached(Noted(folder / "reads"), "d")
    assert ref.lineage is not None
    return ref.lineage.version, ref.gather(range(5)).tolist()


def test_two_machines_that_ask_at_once_build_once(either_place, tmp_path):
    once = either_place.storage(mirror=tmp_path / "alone")
    once.cached(Noted(tmp_path / "once"), "other")
    with processes(ask, [(either_place, tmp_path, machine) for machine in "ab"]) as crowd:
        answers = [process.result() for process in crowd]
    assert answers[0] == answers[1]
    assert answers[0][1] == list(range(5))
    assert sorted((tmp_path / "reads").read_text()) == sorted((tmp_path / "once").read_text())
    assert once.versions("d") == [answers[0][0]]
