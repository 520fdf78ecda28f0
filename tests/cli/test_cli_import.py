"""Old caches, as yogadl 0.1.4 wrote them, and what becomes of them."""

import pickle

import lmdb
import numpy as np
import pytest
from cli_files import Bomb

import yogadl
from yogadl.errors import CacheFormatError


def write_old_cache(path, records, *, leave_out=(), keys=None):
    """Write a cache as yogadl 0.1.4 did: a pickled record a key, in one file, and three more keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"{number:08}".encode() for number in range(len(records))]
    values = {name: pickle.dumps(record, protocol=-1) for name, record in zip(names, records, strict=True)}
    values[b"__keys__"] = pickle.dumps(names if keys is None else keys, protocol=-1)
    values[b"__shapes__"] = pickle.dumps("shapes of TensorFlow", protocol=-1)
    values[b"__types__"] = pickle.dumps("types of TensorFlow", protocol=-1)
    with lmdb.open(str(path), subdir=False, map_size=2**30, meminit=False, map_async=True) as database:
        with database.begin(write=True) as transaction:
            for name, value in values.items():
                if name not in leave_out:
                    transaction.put(name, value)
        database.sync()
    return path


def records(count=23):
    return [
        {
            "image": np.full((4, 3), i, np.uint8),
            "label": np.int64(i),
            "name": b"n\0%d" % i,
            "x": (np.bool_(i % 2),),
        }
        for i in range(count)
    ]


@pytest.fixture
def old(tmp_path):
    return write_old_cache(tmp_path / "old" / "mnist" / "1.0" / "cache.mdb", records())


@pytest.mark.parametrize("what", ["the file", "its folder"])
def test_every_record_comes_over_under_the_names_of_its_folders(run, old, storage, what):
    before = old.read_bytes()
    ended = run("import-014", old if what == "the file" else old.parent, "--trust-pickle").ends(0)
    assert ended.out.startswith("Imported mnist 1.0 in ")
    ref = storage.fetch("mnist", "1.0")
    assert len(ref) == 23
    for found, expected in zip(ref, records(), strict=True):
        assert list(found) == list(expected)
        assert found["image"].tolist() == expected["image"].tolist()
        assert (found["label"], found["name"], found["x"]) == tuple(list(expected.values())[1:])
        assert found["image"].dtype == np.uint8
    assert storage.fetch("mnist", "1.0").fingerprint in ended.out
    assert old.read_bytes() == before


def test_nothing_is_imported_under_the_name_of_a_tag(run, old, storage):
    storage.submit(records(), "mnist", "0")
    storage.tag("mnist", "1.0", "0")
    run("import-014", old, "--trust-pickle").ends(1, "'1.0' is a tag of 'mnist'")


def test_the_new_cache_is_the_one_that_the_records_give(run, old, storage):
    assert run("import-014", old, "--trust-pickle").code == 0
    storage.submit(records(), "again", "1")
    assert storage.fetch("mnist", "1.0").fingerprint == storage.fetch("again", "1").fingerprint


def test_other_names_can_be_given(run, old, storage):
    ended = run("import-014", old, "--id", "a/b", "--version", "2", "--trust-pickle", "--json").ends(0)
    document = ended.json
    assert (document["id"], document["version"], document["records"]) == ("a/b", "2", 23)
    assert storage.datasets() == ["a/b"]


def test_without_the_flag_nothing_is_unpickled_and_the_error_says_what_that_means(run, tmp_path, storage):
    touched = tmp_path / "touched"
    old = write_old_cache(tmp_path / "d" / "1" / "cache.mdb", [Bomb(touched)], keys=Bomb(touched))
    ended = run("import-014", old).ends(1, "unpickling can run any code", "--trust-pickle")
    assert ended.err.count("\n") == 1
    assert not touched.exists()
    assert storage.datasets() == []
    assert run("import-014", old, "--trust-pickle").code == 1
    assert touched.exists(), "the test would not notice"


def test_a_version_that_is_there_stays_unless_it_is_to_be_replaced(run, old, storage):
    storage.submit([1, 2], "mnist", "1.0")
    run("import-014", old, "--trust-pickle").ends(1, "--replace")
    assert len(storage.fetch("mnist", "1.0")) == 2
    assert run("import-014", old, "--trust-pickle", "--replace").code == 0
    assert len(storage.fetch("mnist", "1.0")) == 23


def overwrite(path):
    path.write_bytes(b"no database" * 1000)


def cut(path):
    path.write_bytes(path.read_bytes()[:8192])


def rewritten(**options):
    def damage(path):
        path.unlink()
        write_old_cache(path, records(), **options)

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (overwrite, "no LMDB file"),
        (cut, "cut short"),
        (rewritten(leave_out=[b"__keys__"]), "cut short"),
        (rewritten(leave_out=[b"00000011"]), "lacks record 11"),
        (rewritten(keys=b"cut"), "list of records"),
    ],
    ids=["another file", "truncated", "unfinished", "a record gone", "a list that is none"],
)
def test_a_damaged_old_cache_is_an_error_and_no_cache(run, old, storage, damage, words):
    damage(old)
    ended = run("import-014", old, "--trust-pickle")
    assert (ended.code, ended.err.count("\n")) == (1, 1), ended.err
    assert words in ended.err
    assert storage.datasets() == []


def test_a_record_whose_class_is_missing_is_named(tmp_path):
    from inside import OldCache

    path = write_old_cache(tmp_path / "cache.mdb", records(3))
    with (
        lmdb.open(str(path), subdir=False, map_size=2**30) as database,
        database.begin(write=True) as transaction,
    ):
        transaction.put(b"00000001", b"cno_such_module\nThing\n.")
    cache = OldCache(path)
    with pytest.raises(CacheFormatError, match=r"record 1 of .*no_such_module"):
        list(cache)


def test_what_has_no_stored_form_is_refused_by_name(run, tmp_path):
    old = write_old_cache(tmp_path / "d" / "1" / "cache.mdb", [{"odd": {1, 2}}])
    run("import-014", old, "--trust-pickle").ends(1, "'odd'")


def test_an_import_reads_as_the_same_stream(run, old, root):
    assert run("import-014", old, "--trust-pickle").code == 0
    ref = yogadl.open_storage(root).fetch("mnist", "1.0")
    stream = ref.stream(shuffle=True, shuffle_seed=3)
    assert [int(record["label"]) for record in stream] == stream.indices(0).tolist()
