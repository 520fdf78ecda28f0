"""A version appended to another shares its parts, and is as if all of it had been built at once."""

import hashlib
import json
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cache_files import parts_and_indexes
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import DatasetKey, Manifest, RunHash, _names, fingerprint_of, join_parts, set_constants
from trees import assert_same

import yogadl
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    CursorError,
    DatasetNotFoundError,
    UnsupportedDataError,
)
from yogadl.storage import Earlier

PART_BYTES = 500


def records(first, end):
    """Make records of which one field varies in length."""
    return [
        {"x": np.arange(n, n + 3), "text": f"{n}" * (n % 5), "deep": (n, n / 2)} for n in range(first, end)
    ]


def files_of(storage, dataset_id="d"):
    return {path: path.stat().st_mtime_ns for path in Path(storage.location, dataset_id, "parts").iterdir()}


@pytest.fixture
def base(storage):
    """A storage with a version "1" of 97 records in several parts."""
    storage.submit(records(0, 97), "d", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    assert storage.info("d", "1").parts > 3
    return storage


@pytest.fixture
def grown(base):
    """Versions "2" of 101 records, appended to "1", and "3" of 105, appended to "2"."""
    base.append(records(97, 101), "d", "2", base_version="1")
    base.append(records(101, 105), "d", "3", base_version="2")
    return base


def check_whole(storage, version, count):
    """Check that a version has the first records, each as it should be, as if they had been built at once."""
    storage.submit(records(0, count), "whole", "1")
    storage.verify("d", version)
    ref = storage.fetch("d", version, check=True)
    assert ref.fingerprint == storage.fetch("whole", "1").fingerprint
    assert len(ref) == count
    for found, expected in zip(ref, records(0, count), strict=True):
        assert_same(found, expected)


# As if built at once.


@settings(max_examples=10)
@given(
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    part_bytes=st.sampled_from([None, 100, PART_BYTES]),
    kind=st.sampled_from(["list", "iterator"]),
)
def test_any_chain_of_appends_is_as_if_built_at_once(tmp_path_factory, cuts, part_bytes, kind):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    storage.submit(records(0, 1), "d", "0", build=yogadl.BuildOptions(part_bytes=part_bytes))
    count = 1
    for number, more in enumerate(cuts):
        new = records(count, count + more)
        source = new if kind == "list" else iter(new)
        storage.append(
            source,
            "d",
            str(number + 1),
            base_version=str(number),
            build=yogadl.BuildOptions(part_bytes=part_bytes),
        )
        count += more
    check_whole(storage, str(len(cuts)), count)


def test_a_version_does_not_go_on_with_cursors_of_what_was_appended(base):
    base.submit(records(97, 120), "other", "1")
    ref = base.fetch("other", "1")
    base.append(ref, "d", "2", base_version="1")
    check_whole(base, "2", 120)
    batches = iter(ref.stream(shuffle=True, shuffle_seed=1).batch(4))
    next(batches)
    with pytest.raises(CursorError):
        base.fetch("d", "2").stream(shuffle=True, shuffle_seed=1, cursor=batches.state_dict()).batch(4)


def test_no_part_of_the_base_is_written_again(base):
    before = files_of(base)
    base.append(records(97, 101), "d", "2", base_version="1")
    after = files_of(base)
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2  # a part and its index


@pytest.mark.parametrize("how", ["workers", "engine", "partitioned", "partitioned, engine"])
@pytest.mark.usefixtures("forked_workers")
def test_what_many_build_is_appended_the_same(base, how):
    made_of(base, np.arange(100))
    source, options = np.arange(100, 200), {}
    if "partitioned" in how:
        source = yogadl.partitioned([lambda: range(100, 130), lambda: [], lambda: range(130, 200)])
    with ThreadPoolExecutor(3) as engine:
        options = {"build": yogadl.BuildOptions(engine=engine)} if "engine" in how else {"workers": 2}
        base.append(source, "n", "2", base_version="1", **options)
        base.compact("n", "2", "3", **options)
    base.submit(np.arange(200), "n", "whole")
    for version in ("2", "3"):
        base.verify("n", version)
        assert base.info("n", version).fingerprint == base.info("n", "whole").fingerprint
    assert [earlier.version for earlier in base.info("n", "2").earlier] == ["1"]
    assert base.unfinished() == []


def made_of(storage, source, version="1", dataset_id="n", **options):
    storage.submit(source, dataset_id, version, **options)
    return version


def test_what_is_appended_may_have_the_bytes_of_what_is_there(storage):
    made_of(storage, np.arange(10))
    storage.append(np.arange(10), "n", "2", base_version="1")
    storage.verify("n", "2")
    assert storage.fetch("n", "2").gather(range(20)).tolist() == [*range(10), *range(10)]
    assert len(files_of(storage, "n")) == 2


def test_a_target_that_is_there_is_replaced(base):
    base.append(records(97, 99), "d", "2", base_version="1")
    base.append(records(97, 101), "d", "2", base_version="1")
    check_whole(base, "2", 101)
    base.undelete("d", "2")
    check_whole(base, "2", 99)


@pytest.mark.parametrize(
    ("suffix", "problem"),
    [
        (".parts", "the part table of 'd' version '1'"),
        (".idx", "'d' version '1': records .* the index"),
        (".mdb", "'d' version '1': records .* part .* is missing or was truncated"),
        (".json", "the manifest .* is damaged"),
    ],
)
@pytest.mark.parametrize("is_there", [True, False])
def test_to_a_base_that_is_damaged_nothing_is_appended(base, suffix, problem, is_there):
    path = sorted(Path(base.location, "d").rglob(f"*{suffix}"))[0]
    path.write_bytes(path.read_bytes()[:-8])
    if not is_there:
        path.unlink()
    error = (CacheFormatError, problem) if is_there or suffix != ".json" else (DatasetNotFoundError, "no 'd'")
    with pytest.raises(error[0], match=error[1]):
        base.append(records(97, 99), "d", "2", base_version="1")
    assert "2" not in base.versions("d")
    assert base.unfinished() == []


def test_a_version_without_records_is_appended_to(storage):
    """This library publishes none, another writer may."""
    storage.submit([{"x": 1}], "d", "1")
    root, key = storage._backend.root, DatasetKey("d", "0")
    table = join_parts([]).to_file().to_bytes()
    sha256 = hashlib.sha256(table).hexdigest()
    root.write(_names.table("d", sha256), table)
    spec = storage.info("d", "1").spec
    fingerprint = fingerprint_of(spec, RunHash())
    root.write(
        _names.manifest(key), Manifest(key, spec, 0, fingerprint, sha256, len(table), 0, 0, 0.0).to_bytes()
    )
    storage.append([{"x": 1}], "d", "2", base_version="0")
    assert storage.info("d", "2").fingerprint == storage.info("d", "1").fingerprint
    with pytest.raises(UnsupportedDataError, match="can't append to 'd' version '0'"):
        storage.append([{"x": "text"}], "d", "3", base_version="0")
    with pytest.raises(UnsupportedDataError, match="no records"):
        storage.compact("d", "0", "3")


# Refused.


@pytest.mark.parametrize(
    ("before", "new", "problem"),
    [
        ({"x": [1], "y": [2.0]}, {"x": [1]}, r"field 'y' \(float64\) is missing in the new records"),
        ({"x": [1]}, {"x": [1], "y": [2]}, r"that version lacks the field 'y' \(int64\) of the new records"),
        (
            {"x": [1]},
            {"x": [1.5]},
            "field 'x' is int64 in that version, and float64 in the new records; make it int64",
        ),
        ({"x": ["a"]}, {"x": [b"a"]}, "field 'x' is str in that version, and bytes"),
        (
            {"a": [1], "b": [1]},
            {"b": [1], "a": [1]},
            r"fields are \['a', 'b'\], .* \['b', 'a'\]: give them in",
        ),
        ([{"a": {"b": 1}}], [{"a": {"b": "1"}}], "field 'a/b' is int64 in that version, and str"),
        ([(1, 2)], [[1, 2]], "each of its records is a tuple, each new one a list"),
        ([1], [1.0], "the record is int64 in that version, and float64"),
        ([1], [{"x": 1}], "the record .int64. is missing in the new records, which have the fields"),
    ],
)
def test_another_structure_is_refused_by_the_name_of_the_field(storage, before, new, problem):
    storage.submit(before, "d", "1")
    read = []

    class Counted(list):
        def __getitem__(self, number):
            read.append(number)
            return list.__getitem__(self, number)

    source = Counted(new) if isinstance(new, list) else new
    with pytest.raises(UnsupportedDataError, match=f"can't append to 'd' version '1': .*{problem}"):
        storage.append(source, "d", "2", base_version="1")
    assert storage.versions("d") == ["1"]
    assert read in ([], [0])  # what it looks like, and no more
    assert storage.unfinished() == []


@pytest.mark.parametrize("source", [[], iter(()), np.empty((0, 3)), {"x": []}])
def test_a_source_without_records_is_refused_and_says_so(base, source):
    with pytest.raises(UnsupportedDataError, match="nothing to append to 'd' version '1': fetch"):
        base.append(source, "d", "2", base_version="1")
    assert base.versions("d") == ["1"]


def test_a_version_is_not_appended_to_itself(base):
    with pytest.raises(ConfigurationError, match="would append twice; give the new version another name"):
        base.append(records(97, 99), "d", "1", base_version="1")
    check_whole(base, "1", 97)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("2", r"version '2' \(the tag 'latest'\), which is the same version"),
        ("3", r"version '3' \(the tag 'latest'\), which has all its records"),
    ],
)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_job_that_is_repeated_after_its_tag_was_moved_appends_nothing_twice(grown, named, says, is_there):
    grown.tag("d", "latest", named)
    if not is_there and named == "3":
        grown.delete("d", "2")
    before = {version: grown.info("d", version).digest for version in grown.versions("d")}
    with pytest.raises(ConfigurationError, match=says):
        grown.append(records(97, 101), "d", "2", base_version="latest")
    assert {version: grown.info("d", version).digest for version in grown.versions("d")} == before
    check_whole(grown, "3", 105)
    assert grown.unfinished() == []


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_was_compacted_since_under_another_name_is_not_appended_to_once_more(grown, goes_on):
    grown.compact("d", "2", "2 compact")
    if goes_on:
        grown.append(records(101, 105), "d", "3", base_version="2 compact")
    with pytest.raises(ConfigurationError, match="has all its records: it would have the new records twice"):
        grown.append(records(97, 101), "d", "2", base_version="3" if goes_on else "2 compact")
    check_whole(grown, "2", 101)


def test_a_version_that_was_not_appended_may_be_replaced_by_more_of_the_same(base):
    base.compact("d", "1", "other")
    base.append(records(97, 99), "d", "other", base_version="1")
    check_whole(base, "other", 99)


def test_a_damaged_version_is_appended_anew(grown):
    path = Path(grown.location, "d", "versions", "2.json")
    path.write_bytes(path.read_bytes()[:-8])
    grown.append(records(97, 101), "d", "2", base_version="1")
    check_whole(grown, "2", 101)


@pytest.mark.parametrize("verb", ["append", "compact"])
def test_a_base_that_is_not_there_is_not_found(base, verb):
    builds = {
        "append": lambda: base.append(records(0, 1), "d", "8", base_version="7"),
        "compact": lambda: base.compact("d", "7", "8"),
    }
    with pytest.raises(DatasetNotFoundError, match=r"no 'd' version '7' .*\['1'\]"):
        builds[verb]()
    assert base.versions("d") == ["1"]
    assert base.unfinished() == []


# Shapes that vary only now.

SHAPES = {
    "numbers": lambda shape, n: np.full(shape, n, np.int16),
    "large numbers": lambda shape, n: np.full((*shape, 300), n, np.float32),
    "dates": lambda shape, n: np.full(shape, n, "datetime64[s]"),
    "text": lambda shape, n: np.full(shape, f"{n}" * (n % 4)) if shape else f"{n}" * (n % 4),
    "bytes": lambda shape, n: np.full(shape, b"%d" % n) if shape else b"%d" % n,
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(
    ("before", "now"),
    [((3,), (4,)), ((2, 3), (2, 5)), ((), (3,)), ((0,), (2,)), ((2,), (2, 2)), ((1,), (1, 1, 1, 1, 1, 1))],
)
def test_a_shape_that_varies_only_in_new_records_is_read_from_all_parts(storage, caplog, kind, before, now):
    made = (
        [{"v": SHAPES[kind](before, n)} for n in range(5)],
        [{"v": SHAPES[kind](now, n)} for n in range(5, 9)],
    )
    storage.submit(made[0], "d", "1")
    storage.append(made[1], "d", "2", base_version="1")
    storage.verify("d", "2")
    for check in (False, True):
        for found, expected in zip(storage.fetch("d", "2", check=check), made[0] + made[1], strict=True):
            assert_same(found, expected)
    assert not storage.fetch("d", "2").spec.fields[0].leaf.is_fixed
    storage.submit(made[0] + made[1], "whole", "1")
    assert storage.fetch("d", "2").fingerprint == storage.fetch("whole", "1").fingerprint
    if kind == "numbers":
        assert "the shape of 'v' is" in caplog.text


def test_a_shape_that_varied_before_may_be_fixed_in_new_records(storage):
    made = [np.arange(n % 3) for n in range(7)]
    storage.submit(made, "d", "1")
    storage.append(np.ones((5, 2), np.int64), "d", "2", base_version="1")
    assert [value.tolist() for value in storage.fetch("d", "2")] == [m.tolist() for m in made] + [[1, 1]] * 5
    assert storage.fetch("d", "2").chunks(None, 2)[0].tolist() == [0, 0]


# Beside other operations.


def test_deleting_and_pruning_the_new_version_leaves_the_base_whole(base):
    before = files_of(base)
    base.append(records(97, 101), "d", "2", base_version="1")
    base.delete("d", "2")
    base.prune(grace_s=0)
    assert files_of(base) == before
    check_whole(base, "1", 97)


@pytest.mark.parametrize("then", ["deleted", "deleted and pruned", "replaced", "replaced and pruned"])
def test_the_base_is_what_it_was_when_the_append_began(base, then):
    """Who prunes while a version is built is told that this dataset is left alone."""

    def change():
        other = yogadl.open_storage(base.location)
        if "deleted" in then:
            other.delete("d", "1")
        else:
            other.submit([{"x": np.arange(3), "text": "", "deep": (0, 0.0)}], "d", "1")
        if "pruned" in then:
            assert other.prune(grace_s=0).files == ()

    def source():
        thread = threading.Thread(target=change)
        yield from records(97, 99)
        thread.start()
        thread.join()
        yield from records(99, 101)

    base.append(source, "d", "2", base_version="1")
    check_whole(base, "2", 101)


def test_a_cache_that_an_import_or_another_version_of_the_library_made_is_appended_to(base):
    """Caches from before 0.2.0 have each index under its part's name."""
    for part, index in parts_and_indexes(Path(base.location, "d")):
        index.rename(part.with_suffix(".idx"))
    base.append(records(97, 101), "d", "2", base_version="1")
    check_whole(base, "2", 101)
    base.delete("d", "1")
    base.prune(grace_s=0)
    check_whole(base, "2", 101)
    base.append(records(101, 103), "d", "3", base_version="2")
    check_whole(base, "3", 103)


def test_an_interrupted_append_goes_on(base):
    seen = []

    class Costly:
        def __len__(self):
            return 300

        def __getitem__(self, number):
            seen.append(number)
            return records(97 + number, 98 + number)[0]

    def stop(done, total, size_bytes):
        if done >= 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base.append(
            Costly(),
            "d",
            "2",
            base_version="1",
            build=yogadl.BuildOptions(part_bytes=PART_BYTES, progress=stop),
        )
    assert base.unfinished()[0].version == "2"
    sealed = len(list(Path(base.location, "d").glob("builds/*/one/*.json")))
    base.delete("d", "1")
    base.undelete("d", "1")
    seen.clear()
    base.append(Costly(), "d", "2", base_version="1", build=yogadl.BuildOptions(part_bytes=PART_BYTES))
    assert sealed > 3
    # Parts have some ten records, all of which are looked at again.
    assert seen[-1] == 299
    assert base.unfinished() == []
    check_whole(base, "2", 397)


def test_what_is_selected_of_the_base_is_not_taken_for_the_new_version(base):
    def is_even(record):
        return record["x"][0] % 2 == 0

    assert len(base.fetch("d", "1").filter(is_even)) == 49
    base.append(records(97, 101), "d", "2", base_version="1")
    assert len(base.fetch("d", "2").filter(is_even)) == 51
    assert len(base.fetch("d", "1").filter(is_even)) == 49


# Cursors.


@pytest.mark.parametrize(("shuffle", "order"), [(True, ", in another order"), (False, "")])
def test_a_cursor_of_the_base_is_refused_and_told_what_continues_it(grown, shuffle, order):
    options = {"shuffle": shuffle, "shuffle_seed": 5 if shuffle else None}
    batches = iter(grown.fetch("d", "1").stream(**options).batch(10))
    next(batches)
    cursor = batches.state_dict()
    for version, more in (("2", 4), ("3", 8)):
        theirs = f"cursor is of 'd' version '1': version '{version}'"
        what = rf"{theirs} appends {more} records to these 97{order}\. To go on"
        whole = grown.fetch("d", version)
        for ref in (whole, whole.fields("x"), whole.map(dict)):
            for rebind in (False, True):
                with pytest.raises(CursorError, match=what):
                    ref.stream(**options, cursor=cursor, rebind=rebind)
        loader = whole.stream(**options).batch(10)
        with pytest.raises(CursorError, match=what):
            loader.load_state_dict(cursor)


def is_even(record):
    return record["n"] % 2 == 0


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda ref: ref.chunks("tokens", 4),
        lambda ref: ref.filter(is_even, fields=("n",)),
        lambda ref: ref.split(0.8, seed=1, grows=True)[0],
        lambda ref: ref.select(range(9, -1, -1)),
        lambda ref: yogadl.concat([ref, ref]),
        lambda ref: yogadl.mix({"a": (ref, 1), "b": (ref[:20], 2)}, at_end="repeat"),
    ],
    ids=["chunks", "filter", "split", "select", "concat", "mix"],
)
def test_a_cursor_of_a_view_of_the_base_is_told_which_lines_go_on(storage, view, shuffle):
    documents = [{"tokens": np.arange(n % 5), "n": n} for n in range(60)]
    storage.submit(documents[:40], "d", "1")
    storage.append(documents[40:50], "d", "2", base_version="1")
    storage.append(documents[50:], "d", "3", base_version="2")
    options = {"shuffle": shuffle, "shuffle_seed": 5 if shuffle else None}
    for version, count in (("1", 40), ("2", 50)):
        batches = iter(view(storage.fetch("d", version)).stream(**options).batch(3))
        next(batches)
        cursor = batches.state_dict()
        left = [str(batch) for batch in batches]
        with pytest.raises(CursorError) as caught:
            view(storage.fetch("d", "3")).stream(**options, cursor=cursor)
        assert str(caught.value).endswith(
            f". The cursor is of the same views of version '{version}', with which 'd' version '3' begins: "
            f"write storage.fetch('d', '3')[:{count}] in place of storage.fetch('d', '3')"
        )
        same = view(storage.fetch("d", "3")[:count]).stream(**options, cursor=cursor)
        assert [str(batch) for batch in same.batch(3)] == left


def error_of(old, new):
    with pytest.raises(CursorError) as caught:
        new.stream(cursor=old.stream().state_dict())
    return str(caught.value)


def test_a_cursor_of_other_data_gets_no_hint_of_versions(base):
    base.append(records(97, 101), "d", "2", base_version="1")
    base.submit(records(97, 197), "e", "1")
    first, second, other = base.fetch("d", "1"), base.fetch("d", "2"), base.fetch("e", "1")
    for new in (second[:100], second[:50], second[::2], second.select([3, 1, 2]), first, second):
        for old in (other, other[:97], other[:50], first[3:], first[::-2]):
            assert "version '" not in error_of(old, new)
    assert error_of(other[:97], first).endswith("accept other data of equal length by rebind=True")
    assert "its number of records is 97, the stream has 50" in error_of(first, second[:50])


def test_a_cursor_of_a_part_of_the_base_or_of_a_later_version_is_told_what_to_open(grown):
    first, second, third = (grown.fetch("d", version) for version in "123")
    for new in (first, third[:97], third[:101], first.map(dict)):
        assert error_of(third, new).endswith("The cursor is of 'd' version '3': open that one")
    grown.delete("d", "1")
    for old, new, count in (
        (first, third[:100], 97),
        (second, third[:104], 101),
        (first[::-2], third[::-2], 97),
        (second[5:], third[5:], 101),
        (first.map(dict)[3:].fields("x")[::3], third.map(dict)[3:].fields("x")[::3], 97),
    ):
        said = error_of(old, new)
        assert f"write storage.fetch('d', '3')[:{count}] in place" in said
        assert "storage.fetch('d', '1')" not in said
    grown.delete("d", "3")
    assert re.search(r"the stream has 97: open the .* it was saved with$", error_of(third, first))


def test_a_slice_that_is_an_earlier_version_has_its_fingerprint(grown):
    third, ref, first = (grown.fetch("d", version) for version in "321")
    for same in (
        ref[:97],
        ref.map(dict)[:97],
        ref.fields("x")[0:97],
        third[:101][:97],
        third[:101].map(dict)[:97],
    ):
        assert same.fingerprint == first.fingerprint
        assert same.lineage == first.lineage
    assert third[:101].fingerprint == ref.fingerprint
    assert third[:101].lineage == ref.lineage
    for other in (ref[:96], ref[1:97], ref[:98], ref[96::-1], ref[:97][::2], first[:96]):
        assert other.fingerprint != first.fingerprint
        assert other.lineage is None


def test_a_slice_of_all_records_takes_the_cursors_of_the_reference(base):
    ref = base.fetch("d", "1")
    for view in (ref, ref.select([3, 1, 2]), ref[::-1], ref[:0]):
        for same in (view[:], view[0 : len(view)], view[: len(view) + 5]):
            assert same.fingerprint == view.fingerprint
            same.stream(shuffle=True, cursor=view.stream(shuffle=True).state_dict())
    assert ref[::-1].fingerprint != ref.fingerprint
    assert ref[:][0]["x"].tolist() == ref[0]["x"].tolist()


def test_a_version_says_which_ones_it_continues(grown):
    first, second = grown.info("d", "1"), grown.info("d", "2")
    assert first.earlier == ()
    assert grown.info("d", "3").earlier == (
        Earlier("1", 97, first.fingerprint),
        Earlier("2", 101, second.fingerprint),
    )


def test_of_many_versions_the_newest_are_named(storage, monkeypatch):
    set_constants(monkeypatch, MOST_EARLIER=2)
    made_of(storage, [0], "0")
    for number in range(1, 5):
        storage.append([number], "n", str(number), base_version=str(number - 1))
    assert [earlier.version for earlier in storage.info("n", "4").earlier] == ["2", "3"]


EARLIER = {"version": "1", "records": 1, "fingerprint": "0" * 32}
CONTINUES = [
    *(None, 7, "1", {"version": "1"}, [7], ["1"], [{}]),
    *([EARLIER | {"version": version}] for version in (1, "../1")),
    *([EARLIER | {"records": records}] for records in (1.0, True, -1, 98, 10**30)),
    *([EARLIER | {"fingerprint": fingerprint}] for fingerprint in (None, "00")),
]


@pytest.mark.parametrize("continues", CONTINUES)
def test_a_manifest_that_continues_what_no_version_can_is_refused(base, continues):
    path = Path(base.location, "d", "versions", "1.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"continues": continues}))
    with pytest.raises(CacheFormatError, match=r"manifest \S*1\.json is damaged"):
        base.fetch("d", "1")


def test_what_a_newer_library_says_of_earlier_versions_is_ignored(base):
    path = Path(base.location, "d", "versions", "1.json")
    earlier = EARLIER | {"version": "0", "author": "me"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"continues": [earlier]}))
    assert base.info("d", "1").earlier == (Earlier("0", 1, "0" * 32),)


# Compaction.


@pytest.mark.parametrize("workers", [1, 2])
def test_many_appends_are_compacted_to_few_parts_with_the_same_records(base, workers):
    for number in range(2, 9):
        base.append(
            records(90 + number * 4 - 1, 94 + number * 4 - 1), "d", str(number), base_version=str(number - 1)
        )
    base.compact("d", "8", "8c", workers=workers)
    if workers == 1:  # several make a part each, of many shares
        assert base.info("d", "8c").parts == 1
    assert base.info("d", "8c").fingerprint == base.info("d", "8").fingerprint
    check_whole(base, "8c", 125)


def test_a_version_is_compacted_in_place(base):
    ref = base.fetch("d", "1")
    base.compact("d", "1", "1")
    assert base.info("d", "1").parts == 1
    check_whole(base, "1", 97)
    assert ref.gather([96])["deep"][0].tolist() == [96]  # who had it open keeps it


def test_a_compacted_version_continues_what_it_did_and_takes_its_cursors(base):
    base.append(records(97, 101), "d", "2", base_version="1")
    base.compact("d", "2", "2c")
    cursor = iter(base.fetch("d", "2").stream(shuffle=True).batch(10)).state_dict()
    base.fetch("d", "2c").stream(shuffle=True, cursor=cursor)
    cursor = iter(base.fetch("d", "1").stream(shuffle=True).batch(10)).state_dict()
    with pytest.raises(CursorError, match="version '1': version '2c' appends 4 records to these 97"):
        base.fetch("d", "2c").stream(shuffle=True, cursor=cursor)


class Explodes:
    """What must not be unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


def test_pickled_fields_are_compacted_without_unpickling(storage):
    storage.submit([{"o": Explodes(), "n": 1}], "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    storage.append(
        [{"o": {3}, "n": 2}], "d", "2", base_version="1", records=yogadl.RecordOptions(allow_pickle=True)
    )
    storage.compact("d", "2", "3")
    storage.verify("d", "3")
    assert storage.info("d", "3").fingerprint == storage.info("d", "2").fingerprint
    assert storage.fetch("d", "3", allow_pickle=True)[1] == {"o": {3}, "n": 2}


def test_what_is_damaged_is_not_compacted(base):
    path = sorted(Path(base.location, "d", "parts").glob("*.mdb"))[0]
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 8):
        content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(CacheFormatError):
        base.compact("d", "1", "2")
    assert base.versions("d") == ["1"]


def test_what_built_a_version_is_known_of_it_once_it_is_compacted(storage):
    @storage.cacheable("n", "1")
    def squares(count):
        return np.arange(count) ** 2

    squares(9)
    storage.compact("n", "1", "2")
    assert storage.info("n", "2").builder["arguments"] == storage.info("n", "1").builder["arguments"]
    assert storage.info("n", "2").builder["compacts"] == "1"
    assert "their records are the same" in str(storage.explain("n", "1", "2"))


def test_a_reference_to_a_grown_version_pickles_small(base):
    base.append(records(97, 101), "d", "2", base_version="1")
    ref = pickle.loads(pickle.dumps(base.fetch("d", "2")))
    assert len(ref) == 101
    assert len(pickle.dumps(ref)) < 1_000
