"""Sources in partitions: the same cache however they are read, and each partition once."""

import functools
import os
import pickle
import threading
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from partitioned_sources import Rows, partitions, row, said

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError

BOUNDS = (10, 10, 17, 40, 41)


def records_of(ref):
    return [record["n"] for record in ref]


@pytest.fixture
def log(tmp_path):
    """Where sources say what is read of them."""
    return tmp_path / "log"


@pytest.fixture
def expected(storage):
    """Return the fingerprint of the same records, built at once."""
    storage.submit([row(index) for index in range(41)], "whole", "1")
    return storage.fetch("whole", "1").fingerprint


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
def test_any_number_of_workers_builds_the_same_cache_of_partitions(storage, log, expected, workers):
    storage.submit(partitions(log, *BOUNDS), "d", "1", workers=workers)
    ref = storage.fetch("d", "1")
    assert ref.fingerprint == expected
    assert records_of(ref) == list(range(41))
    storage.verify("d", "1")
    opened = [*(f"partition-{first}" for first in (0, *BOUNDS[:-1])), *map(str, range(41))]
    assert {*said(log)} == {*opened}
    # Several workers may open the first ones: their records decide whether numbers are int or float.
    repeated = [line for line, count in Counter(said(log)).items() if count > opened.count(line)]
    first = next(bound for bound in BOUNDS if bound)
    assert {*repeated} <= {"partition-0", *map(str, range(first))}


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor])
@pytest.mark.parametrize("kind", ["partitions", "random access", "arrays", "list"])
def test_any_executor_builds_the_same_cache(storage, log, expected, make, kind):
    rows = [row(index) for index in range(41)]
    source = {
        "partitions": partitions(log, *BOUNDS),
        "random access": Rows(41, log),
        "arrays": {name: [one[name] for one in rows] for name in rows[0]},
        "list": rows,
    }[kind]
    with make(2) as engine:
        storage.submit(source, "d", "1", build=yogadl.BuildOptions(engine=engine))
    ref = storage.fetch("d", "1")
    assert ref.fingerprint == expected
    assert records_of(ref) == list(range(41))


def test_of_an_executor_only_submit_is_used_and_what_it_is_given_is_small(storage):
    class Engine:
        def __init__(self):
            self.sent, self.pool = [], ThreadPoolExecutor(1)

        def submit(self, function, *args):
            self.sent.append(len(pickle.dumps((function, args))))
            return self.pool.submit(function, *args)

    engine = Engine()
    data = np.arange(64 * 10_000).reshape(64, 10_000)
    storage.submit(data, "d", "1", build=yogadl.BuildOptions(engine=engine))
    assert np.array_equal(storage.fetch("d", "1").gather(range(64)), data)
    assert len(engine.sent) == 64
    assert max(engine.sent) < 2 * data[0].nbytes


def test_an_engine_whose_tasks_are_no_futures_of_python_is_refused(storage):
    class Client:
        def submit(self, function, *args):
            return object()

    with pytest.raises(ConfigurationError, match=r"this Client did not .* pass client\.get_executor"):
        storage.submit([1, 2], "d", "1", build=yogadl.BuildOptions(engine=Client()))
    assert storage.datasets() == []
    storage.submit([1, 2], "d", "1")
    assert storage.unfinished() == []


@pytest.mark.parametrize("workers", [0, 1])
def test_without_workers_this_process_reads(storage, workers):
    def process(*_):
        return {"process": os.getpid()}

    source = yogadl.from_source(range(3)).map(process)
    storage.submit(source, "d", "1", workers=workers)
    storage.append(source, "d", "2", base_version="1", workers=workers)
    storage.compact("d", "2", "3", workers=workers)
    made = storage.cacheable("d", "4", workers=workers)(lambda: source)()
    for ref in (storage.fetch("d", "3"), made):
        assert set(ref.gather(range(len(ref)))["process"]) == {os.getpid()}


def test_a_function_that_returns_partitions_is_built_once(storage, log):
    @storage.cacheable("d", "1", workers=2)
    def build():
        return partitions(log, *BOUNDS)

    for _ in range(2):
        assert records_of(build()) == list(range(41))
    assert len({*said(log)}) == 41 + len({0, *BOUNDS[:-1]})


def test_any_source_may_be_a_partition(storage):
    source = yogadl.partitioned(
        [
            lambda: [{"n": 0}],
            lambda: iter([{"n": 1}]),
            lambda: {"n": np.arange(2, 4)},
            lambda: ({"n": n} for n in range(4, 6)),
            lambda: yogadl.partitioned([lambda: [{"n": 6}], lambda: [{"n": 7}]]),
            lambda: yogadl.from_source({"n": np.arange(8, 10)}),
        ]
    )
    storage.submit(source, "d", "1")
    assert records_of(storage.fetch("d", "1")) == list(range(10))


@pytest.mark.parametrize(
    "empty", [list, lambda: iter(()), lambda: {"n": np.arange(0)}, lambda: np.arange(0)], ids=range(4)
)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("forked_workers")
def test_partitions_may_be_empty(storage, empty, workers):
    storage.submit(yogadl.partitioned([empty, lambda: [{"n": 0}], empty]), "d", "1", workers=workers)
    assert records_of(storage.fetch("d", "1")) == [0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("forked_workers")
def test_shapes_may_differ_between_partitions(storage, workers):
    values = [np.zeros((5, 3)), np.ones((5, 4))]
    source = yogadl.partitioned.of(values, lambda value: {"x": value})
    storage.submit(source, "d", "1", workers=workers)
    ref = storage.fetch("d", "1")
    assert ref.spec.fields[0].leaf.shape == (None,)
    storage.submit([{"x": x} for value in values for x in value], "whole", "1")
    assert ref.fingerprint == storage.fetch("whole", "1").fingerprint


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("forked_workers")
def test_an_error_names_its_partition_and_path(storage, workers):
    source = yogadl.partitioned.of(["a.csv", "b.csv"], lambda path: [{"n": 1 // (path == "a.csv")}])
    with pytest.raises(ZeroDivisionError) as caught:
        storage.submit(source, "d", "1", workers=workers)
    assert "in partition 1 of 2 ('b.csv')" in caught.value.__notes__


@pytest.mark.parametrize("engine", ["workers", "threads"])
def test_the_error_of_a_source_that_was_sent_names_its_file_and_line(storage, engine):
    def read(number):
        raise LookupError("gone")

    line = read.__code__.co_firstlineno + 1
    source = yogadl.partitioned.of(range(2), read)
    with ThreadPoolExecutor(1) as threads, pytest.raises(LookupError) as caught:
        storage.submit(
            source,
            "d",
            "1",
            **({"workers": 2} if engine == "workers" else {"build": yogadl.BuildOptions(engine=threads)}),
        )
    assert f'File "{__file__}", line {line}, in read' in "".join(traceback.format_exception(caught.value))


def test_what_does_not_pickle_is_refused_with_what_to_do(storage):
    lock = threading.Lock()
    source = yogadl.partitioned([lambda: [lock.locked()]] * 2)
    with pytest.raises(ConfigurationError, match=r"can't be sent to workers: .* Leave workers out"):
        storage.submit(source, "d", "1", workers=2)
    with (
        ThreadPoolExecutor(1) as engine,
        pytest.raises(ConfigurationError, match=r"to an engine's tasks, .* Leave the engine out"),
    ):
        storage.submit(source, "d", "1", build=yogadl.BuildOptions(engine=engine))
    storage.submit(source, "d", "1")


# Version "auto" and provenance.


def auto_version(storage, source):
    @storage.cacheable("d", "auto")
    def build(source):
        return source

    build(source)
    return set(storage.versions("d"))


def numbers(scale, first):
    return [{"n": scale * n} for n in range(first, first + 3)]


def test_functions_and_values_of_partitions_decide_an_auto_version(storage):
    first = auto_version(storage, yogadl.partitioned.of([0, 3], functools.partial(numbers, 1)))
    assert auto_version(storage, yogadl.partitioned.of([0, 3], functools.partial(numbers, 1))) == first
    assert len(first) == 1
    changes = [
        yogadl.partitioned.of([0, 4], functools.partial(numbers, 1)),
        yogadl.partitioned.of([0, 3], functools.partial(numbers, 2)),
        yogadl.partitioned.of([0, 3], lambda first: numbers(1, first)[:2]),
    ]
    for count, source in enumerate(changes, 2):
        assert len(auto_version(storage, source)) == count


# Going on.


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("forked_workers")
def test_a_build_that_failed_goes_on_with_the_partitions_that_are_written(storage, tmp_path, workers):
    log, is_broken = tmp_path / "log", tmp_path / "broken"
    is_broken.touch()
    source = yogadl.partitioned.of(range(8), functools.partial(one_of_eight, log, is_broken))
    with pytest.raises(ConnectionResetError):
        storage.submit(source, "d", "1", workers=workers)
    before = said(log)
    assert len(before) >= 3
    is_broken.unlink()
    storage.submit(source, "d", "1", workers=workers)
    assert records_of(storage.fetch("d", "1")) == list(range(8))
    assert len(said(log)) <= 8 + workers


def one_of_eight(log, is_broken, number):
    if number == 5 and is_broken.exists():
        raise ConnectionResetError("gone")
    with log.open("a") as file:
        file.write(f"{number}\n")
    return [{"n": number}]


def test_a_file_that_was_changed_since_is_read_again(storage, tmp_path):
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in paths[:2]:
        path.write_text("1")
    source = yogadl.partitioned.of(paths, lambda path: [{"n": int(path.read_text())}])
    with pytest.raises(FileNotFoundError):
        storage.submit(source, "d", "1")
    paths[0].write_text("100")
    paths[2].write_text("3")
    storage.submit(source, "d", "1")
    assert records_of(storage.fetch("d", "1")) == [100, 1, 3]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("forked_workers")
def test_other_code_takes_nothing_of_what_a_failed_build_has_written(storage, tmp_path, workers):
    def fails(number):
        if number == 3:
            raise ConnectionResetError("gone")
        return [{"n": number}]

    with pytest.raises(ConnectionResetError):
        storage.submit(yogadl.partitioned.of(range(4), fails), "d", "1", workers=workers)
    storage.submit(
        yogadl.partitioned.of(range(4), lambda number: [{"n": -number}]), "d", "1", workers=workers
    )
    assert records_of(storage.fetch("d", "1")) == [0, -1, -2, -3]
    assert storage.unfinished() == []


def test_a_replacement_takes_nothing_of_what_it_replaces(storage, tmp_path, monkeypatch):
    """As after a build that was killed right after it had published, by a source that can't tell."""
    value = tmp_path / "value"
    value.write_text("1")
    source = yogadl.partitioned.of(range(3), functools.partial(from_file, value))
    monkeypatch.setattr("yogadl.storage._builds.build.clear_attempt", lambda *_: None)
    monkeypatch.setattr("yogadl.storage._builds.building.clear_unresumable", lambda *_: None)
    storage.submit(source, "d", "1")
    assert list((tmp_path / "caches/d/builds").rglob("*.json"))
    value.write_text("2")
    storage.submit(source, "d", "1")
    assert records_of(storage.fetch("d", "1")) == [2, 2, 2]


def from_file(path, number):
    return [{"n": int(path.read_text())}]


def test_random_access_goes_on_with_any_number_of_workers(storage, tmp_path):
    log, stop = tmp_path / "log", tmp_path / "stop"
    stop.touch()
    source = Rows(1000, log, stop)
    with pytest.raises(ConnectionResetError):
        storage.submit(source, "d", "1", workers=2)
    stop.unlink()
    storage.submit(source, "d", "1", workers=3)
    assert records_of(storage.fetch("d", "1")) == list(range(1000))
    assert len(said(log)) <= 1100


def test_records_in_memory_that_were_changed_since_are_read_again(storage):
    records = [{"n": n} for n in range(200)]
    records[150] = {"n": None}
    with pytest.raises(UnsupportedDataError):
        storage.submit(records, "d", "1", workers=2)
    records[150] = {"n": 150}
    records[7] = {"n": -7}
    storage.submit(records, "d", "1", workers=2)
    assert records_of(storage.fetch("d", "1"))[5:9] == [5, 6, -7, 8]


# begin with a source: tasks that know nothing of each other.


def test_whoever_begins_with_the_same_source_goes_on_with_the_same_build(storage, log, expected):
    for number in range(5):
        storage.begin("d", "1", source=partitions(log, *BOUNDS)).write(number)
    storage.begin("d", "1", source=partitions(log, *BOUNDS)).commit()
    assert storage.fetch("d", "1").fingerprint == expected


def test_another_source_is_another_build(storage, log):
    build = storage.begin("d", "1", source=partitions(log, 3, 6))
    build.write(0)
    other = storage.begin("d", "1", source=partitions(log, 3, 7))
    other.write(1)
    with pytest.raises(ConfigurationError, match=r"\[0\]; other partitions of this version were written by"):
        other.commit()


def test_a_run_that_was_named_is_not_gone_on_with_by_tasks_that_read_other_data(storage, monkeypatch):
    class Afar:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return int(os.environ["FIRST"]) + index

    monkeypatch.setenv("FIRST", "1")
    storage.begin("d", "1", source=Afar(), partitions=2, run="job").write(0)
    monkeypatch.setenv("FIRST", "5")
    with pytest.raises(ConfigurationError, match=r"partition 0 of 2 \(records 0 to 0\) was written from"):
        storage.begin("d", "1", source=Afar(), partitions=2, run="job").write(0)


class Scaled:
    """Random access whose records its values decide."""

    def __init__(self, factor, count=6):
        self.factor, self.count = factor, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * self.factor


def scaled_partitions(factor):
    return yogadl.partitioned.of(range(3), functools.partial(one_scaled, factor))


def one_scaled(factor, number):
    return [2 * number * factor, (2 * number + 1) * factor]


@pytest.mark.parametrize("source", [Scaled, scaled_partitions])
def test_a_run_never_publishes_what_sources_of_other_values_have_written_together(storage, source, caplog):
    def begun(factor):
        return storage.begin("d", "1", source=source(factor), run="job", **count)

    count = {"partitions": 3} if source is Scaled else {}
    begun(1).write(0)
    begun(10).write(1)
    with pytest.raises(
        ConfigurationError, match=r"1 of 3 partitions are not written yet, and 1 of 3 .* \[0, 2\], then"
    ):
        begun(10).commit()
    begun(10).write(2)
    for committer in (10, 1):
        with pytest.raises(
            ConfigurationError, match=r"written by other code, arguments or values than the commit has: \["
        ):
            begun(committer).commit()
    assert storage.versions("d") == []
    begun(10).write(0)
    assert "partition 0 of 3" in caplog.text
    assert "it is written again" in caplog.text
    begun(10).commit()
    assert storage.fetch("d", "1").gather(range(6)).tolist() == [0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize("source", [Scaled, scaled_partitions, lambda factor: np.arange(6) * factor])
@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_run_that_is_published_is_not_taken_for_one_of_other_values(storage, source, step):
    def begun(factor):
        given = source(factor)
        count = {} if source is scaled_partitions else {"partitions": 3}
        return storage.begin("d", "1", source=given, run="job", **count)

    for number in range(3):
        begun(1).write(number)
    begun(1).commit()
    begun(1).write(0)
    begun(1).commit()
    storage.begin("d", "1", partitions=3, run="job").commit()
    with pytest.raises(ConfigurationError, match="published by the run 'job' from other code"):
        begun(10).write(0) if step == "write" else begun(10).commit()
    assert storage.fetch("d", "1").gather(range(6)).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_run_of_a_source_that_has_grown_is_not_the_one_before(storage):
    storage.begin("d", "1", source=Scaled(1, 6), partitions=2, run="job").write(0)
    grown = storage.begin("d", "1", source=Scaled(1, 8), partitions=2, run="job")
    grown.write(1)
    with pytest.raises(ConfigurationError, match=r"1 of 2 partitions were written by other .*: \[0\], then"):
        grown.commit()
    grown.write(0)
    grown.commit()
    assert list(storage.fetch("d", "1")) == list(range(8))


def test_a_commit_without_the_source_refuses_partitions_of_sources_of_other_values(storage):
    for number, factor in enumerate((1, 10)):
        storage.begin("d", "1", source=Scaled(factor), partitions=2, run="job").write(number)
    without = storage.begin("d", "1", partitions=2, run="job")
    with pytest.raises(ConfigurationError, match=r"1 of 2 partitions were written by other .*: \[1\], then"):
        without.commit()
    storage.begin("d", "1", source=Scaled(1), partitions=2, run="job").write(1)
    without.commit()
    assert list(storage.fetch("d", "1")) == list(range(6))


def test_a_source_that_nothing_certain_can_be_said_of_needs_a_run(storage, monkeypatch):
    opened = iter([[1], [2]])  # an iterator that was begun has no content
    next(opened)
    generator = (n for n in range(3))
    source = yogadl.partitioned([lambda: generator])
    with pytest.raises(ConfigurationError, match="give a run, such as the id of the job"):
        storage.begin("d", "1", source=source)
    build = storage.begin("d", "1", source=source, run="job")
    build.write(0)
    build.commit()
    assert storage.fetch("d", "1").gather(range(3)).tolist() == [0, 1, 2]


def of_type(kind, number):
    return [{"n": kind(number)}, {"n": kind(number + 1)}]


def test_a_named_run_of_other_values_decides_anew_what_numbers_are(storage):
    def begun(kind):
        source = yogadl.partitioned.of(range(3), functools.partial(of_type, kind))
        return storage.begin("d", "1", source=source, run="job")

    begun(int).write(1)
    for number in (2, 1, 0):
        begun(float).write(number)
    begun(float).commit()
    assert storage.fetch("d", "1").spec.fields[0].leaf.dtype == "float64"
