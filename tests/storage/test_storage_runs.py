"""Tasks of a run that has a name never publish what differs together."""

import numpy as np
import pytest
from inside import set_constants

import yogadl
from yogadl.errors import ConfigurationError

ROWS = 20_000


@pytest.fixture
def storage(tmp_path):
    return yogadl.open_storage(tmp_path)


def changed(count):
    """Return arrays of which so many rows were changed, between those of a sample."""
    values = np.arange(ROWS)
    values[1340:][:count] *= -1  # the records 1333 and 2666 are sampled
    return {"n": values, "label": np.arange(ROWS) % 10}


VIEWS = {
    "all": lambda ref: ref,
    "slice": lambda ref: ref[:],
    "fields": lambda ref: ref.fields("n"),
    "map": lambda ref: ref.map(lambda record: {"n": record["n"] + 1}),
    "concat": lambda ref: yogadl.concat([ref, ref]),
}


def written(storage, make, *tasks):
    """Let each task write its partition of a run from its own source; return what the last one has begun."""
    for number, task in enumerate(tasks):
        build = storage.begin("d", "1", source=make(*task), run="job", partitions=len(tasks))
        build.write(number)
    return build


@pytest.mark.parametrize("count", [1, 7, 1300])
@pytest.mark.parametrize("view", VIEWS)
def test_arrays_of_which_a_few_rows_differ_are_not_published_together(storage, view, count):
    def make(rows):
        return VIEWS[view](yogadl.from_source(changed(rows)))

    assert make(0).fingerprint == make(count).fingerprint  # of a sample
    build = written(storage, make, [0], [count])
    with pytest.raises(ConfigurationError, match=r"1 of 2 partitions were written by other code, .*: \[0\]"):
        build.commit()
    build.write(0)  # as the error says
    build.commit()
    assert len(storage.fetch("d", "1")) in (ROWS, 2 * ROWS)


@pytest.mark.parametrize("view", VIEWS)
def test_equal_arrays_of_several_tasks_are_published(storage, view):
    written(storage, lambda: VIEWS[view](yogadl.from_source(changed(0))), [], [], []).commit()
    assert len(storage.fetch("d", "1")) in (ROWS, 2 * ROWS)


@pytest.mark.parametrize(
    "make",
    [
        lambda last: {"n": [np.arange(3), np.arange(5), *[np.arange(2)] * 97, np.arange(last)]},
        lambda last: {"n": ["text"] * 50 + ["other"] * last + ["text"] * (50 - last)},
        lambda last: [{"n": number * (1 if number % 50 - 7 else last)} for number in range(100)],
        lambda last: np.where(np.arange(100) == 7, last, np.arange(100)),
    ],
)
def test_lists_and_records_are_compared_too(storage, make):
    build = written(storage, lambda last: yogadl.from_source(make(last)), [1], [2])
    with pytest.raises(ConfigurationError, match="were written by other code"):
        build.commit()


def test_arrays_with_a_fingerprint_are_not_read(storage):
    class Unread(np.ndarray):
        reads = 0

        def __getitem__(self, rows):
            Unread.reads += 1
            return np.asarray(super().__getitem__(rows))

    arrays = {"n": np.arange(ROWS).view(Unread)}
    ref = yogadl.from_source(arrays, fingerprint="a")
    before = Unread.reads
    storage.begin("d", "1", source=ref, run="job", partitions=2)
    assert Unread.reads - before < 4


@pytest.mark.parametrize(("most", "is_hashed"), [(799, False), (800, True), (801, True)])
@pytest.mark.parametrize("make", [lambda: np.arange(100), lambda: {"b": [b"12345678"] * 100}])
def test_larger_arrays_need_a_fingerprint(storage, monkeypatch, make, most, is_hashed):
    set_constants(monkeypatch, MOST_HASHED_BYTES=most)
    if is_hashed:
        written(storage, lambda: yogadl.from_source(make()), [], []).commit()
        return
    with pytest.raises(ConfigurationError, match=r"too much to hash in each task: name the content, from_"):
        storage.begin("d", "1", source=yogadl.from_source(make()), run="job", partitions=2)
    written(storage, lambda: yogadl.from_source(make(), fingerprint="a"), [], []).commit()
    assert len(storage.fetch("d", "1")) == 100
