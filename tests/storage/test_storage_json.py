"""Json values in storages: what adds to a version, copies it or stores it anew has them as they were."""

import numpy as np
import pytest
from trees import JSON_VALUES, same_json

import yogadl
from yogadl.errors import UnsupportedDataError

COUNT = 57
VALUES = [JSON_VALUES[number % len(JSON_VALUES)] for number in range(COUNT)]


def rows(values):
    return [{"tree": value, "id": number} for number, value in enumerate(values)]


def trees(ref):
    return ref.gather(range(len(ref)))["tree"]


@pytest.fixture
def ref(storage):
    return storage.submit(rows(VALUES), "d", "1", json="tree", build=yogadl.BuildOptions(part_bytes=600))


MADE = {
    "compacted": lambda storage, ref: storage.compact("d", "1", "2"),
    "as it was": lambda storage, ref: storage.recompress("d", "1", "2", codec=None),
    "submitted again": lambda storage, ref: storage.submit(ref, "e", "1"),
    "selected": lambda storage, ref: storage.submit(ref.select(range(COUNT)), "e", "1"),
    "cached": lambda storage, ref: storage.cached(ref, "e"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MADE)
def test_a_version_made_of_another_has_its_values_and_fingerprint(storage, ref, kind):
    made = MADE[kind](storage, ref)
    assert made.spec == ref.spec
    assert made.fingerprint == ref.fingerprint
    assert same_json(trees(made), VALUES)


@pytest.mark.parametrize(
    "more",
    [[[1, 2, 3]], [{"a": 1}], ["x"], [2.5, 7], [["x"], ["y", "z"]], [None], [True], JSON_VALUES],
    ids=lambda values: repr(values)[:20],
)
def test_appended_values_are_json_values_whatever_they_are_alone(storage, ref, more):
    grown = storage.append(rows(more), "d", "2", base_version="1")
    assert grown.spec == ref.spec
    assert same_json(trees(grown), VALUES + more)
    assert storage.verify("d", "2").records == COUNT + len(more)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1, 2), "that is a tuple: write a list"),
        ({"a": np.zeros(3)}, "whose a is a numpy.ndarray"),
        (np.float32(1), "that is a numpy.float32"),
        ({"a": {1: 2}}, "whose a has the key 1"),
    ],
    ids=repr,
)
def test_what_is_no_json_value_is_not_appended(storage, ref, value, says):
    with pytest.raises(UnsupportedDataError, match=f"record 1: field 'tree' is a json value,? ?{says}"):
        storage.append(rows(["x", value]), "d", "2", base_version="1")
    assert storage.versions("d") == ["1"]


AFAR = {
    "ranges": {"mirror": None},
    "checked ranges": {"mirror": None, "verify": "block"},
    "a mirror": {"mirror": "mirror"},
    "a small mirror": {"mirror": yogadl.Mirror("mirror", limit=100_000, fill="always")},
}


@pytest.mark.parametrize("options", AFAR)
@pytest.mark.parametrize("check", [False, True])
def test_values_are_read_from_a_bucket(storage, ref, tmp_path, options, check, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bucket = f"file://{tmp_path / 'bucket'}"
    yogadl.storage.copy(storage, yogadl.open_storage(bucket, mirror=None), "d", "1")
    afar = yogadl.open_storage(bucket, **AFAR[options])
    found = afar.fetch("d", "1", check=check)
    assert found.fingerprint == ref.fingerprint
    loaders = [found.stream().batch(10), found.stream().batch(10).prefetch(2, workers=1)]
    for batches in loaders[: 2 if (options, check) == ("a mirror", False) else 1]:
        assert same_json([value for batch in batches for value in batch["tree"]], VALUES)
