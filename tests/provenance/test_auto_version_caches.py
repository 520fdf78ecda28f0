"""version="auto": other caches and references that a builder reads count; builds that call builds."""

import functools
import threading

import cloudpickle
import numpy as np
import pytest
from versioned_project import auto, squares

import yogadl
from yogadl.errors import ConfigurationError


def test_a_cache_that_it_reads_counts_by_its_own_version(storage):
    def chain(raw_version, raw):
        raw = storage.cacheable("raw", raw_version)(raw)

        def build():
            return list(raw())

        return auto(storage, build)

    one, two = (lambda: [1]), (lambda: [2])
    calls = ("auto", one), ("auto", one), ("auto", two), ("1", one), ("1", two), ("2", two)
    # The last but one serves what `one` built.
    assert [len(chain(*call)) for call in calls] == [1, 1, 2, 3, 3, 4]


def test_it_is_the_same_where_cloudpickle_brought_the_function(storage, load):
    module = load()
    before = auto(storage, module.build)
    cloudpickle.register_pickle_by_value(module)  # as the modules of a script and of a notebook are sent
    try:
        sent = cloudpickle.loads(cloudpickle.dumps(module.build))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert sent is not module.build
    assert auto(storage, sent) == before


def test_a_decorator_around_such_a_cache_counts_too(storage):
    def chain(decorate):
        raw = decorate(storage.cacheable("raw", "1")(squares))

        def build():
            return list(raw(3))

        return auto(storage, build)

    def first(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)[:2]

        return call

    def second(function):
        @functools.wraps(function)
        def call(*args):
            return function(*args)[1:]

        return call

    assert len(chain(first)) == 1
    assert len(chain(second)) == 2


def double(record):
    return {"x": record["x"] * 2}


TOKENS = yogadl.Leaf("int64", (None,))


def twice(record):
    return {"x": np.repeat(record["x"], 2)}


def triple(record):
    return {"x": record["x"] * 3}


def test_what_becomes_of_a_references_records_counts_too(storage):
    one, two = (yogadl.from_source({"x": [n], "y": [n]}, fingerprint=f"records {n}") for n in range(2))

    def build(ref):
        return [1]

    texts = yogadl.from_source([{"x": np.arange(3)}] * 4, fingerprint="texts", spec={"x": TOKENS})

    def mixed(weight, seed=0):
        return yogadl.mix({"one": (one, weight), "two": (two, 1)}, seed=seed)

    refs = [
        one, one.map(double), one.map(triple), one.map(double).map(double), one.map(double)[:0],
        one.fields("x"), one.fields("y"), one.fields("x").map(double), yogadl.concat([one, two]),
        yogadl.concat([one.map(double), two.map(double)]), yogadl.concat([one.map(triple), two.map(double)]),
        texts.chunks("x", 2), texts.chunks("x", 2, segments="of"), texts.map(twice).chunks("x", 2),
        mixed(1), mixed(2), mixed(1, seed=1), mixed(1).map(double),
    ]  # fmt: skip
    assert [len(auto(storage, build, ref)) for ref in refs] == list(range(1, len(refs) + 1))
    assert len(auto(storage, build, one.map(double))) == len(refs)


def test_a_reference_counts_by_its_fingerprint(storage):
    def build(ref):
        return list(ref)

    storage.submit([1, 2, 3], "raw", "1", build=yogadl.BuildOptions(part_bytes=8))
    storage.submit([1, 2, 3], "raw", "2")
    storage.submit([1, 2, 4], "raw", "3")
    assert len(auto(storage, build, storage.fetch("raw", "1"))) == 1
    assert len(auto(storage, build, storage.fetch("raw", "2"))) == 1
    assert len(auto(storage, build, storage.fetch("raw", "3"))) == 2
    assert len(auto(storage, build, yogadl.from_source([1], fingerprint="mine"))) == 3
    sampled = yogadl.from_source([1])
    for ref in (sampled, sampled[:], sampled.select([0]), sampled.map(int), yogadl.concat([sampled])):
        with pytest.raises(ConfigurationError, match=r"argument 'ref'.*fingerprint of a sample"):
            auto(storage, build, ref)


def test_one_that_asks_for_its_own_result_is_told_so(storage):
    @storage.cacheable("d", "auto")
    def build():
        return build()

    with pytest.raises(ConfigurationError, match="a function that builds a version can't read"):
        build()


def test_threads_that_call_at_once_build_once(storage, tmp_path):
    @storage.cacheable("d", "auto")
    def build():
        with (tmp_path / "calls").open("a") as file:
            file.write("x")
        return list(range(10))

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "calls").read_text() == "x"
    assert len(storage.versions("d")) == 1


def test_what_the_build_itself_changes_makes_no_new_version(storage):
    seen = {}

    @storage.cacheable("d", "auto")
    def build(n):
        seen[n] = True
        return list(range(n))

    for n in (3, 3, 4, 3, 4):
        build(n)
    assert len(storage.versions("d")) == 2
    seen["else"] = 1
    build(3)
    assert len(storage.versions("d")) == 3
