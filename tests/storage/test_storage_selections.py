"""What `ref.filter` keeps beside a cache: found again, never believed, pruned and copied with versions."""

import errno
import hashlib
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from inside import ArrayFile, Folder
from processes import in_child, processes

import yogadl
from yogadl.errors import StorageError
from yogadl.storage import copy

DAY_S = 86_400
RECORDS = 200


def submit(storage, version="1", shift=0):
    storage.submit({"label": (np.arange(RECORDS) + shift) % 10, "x": np.zeros(RECORDS)}, "d", version)


@pytest.fixture
def ref(storage):
    submit(storage)
    return storage.fetch("d", "1")


class Counted:
    """Select labels below a limit, and count the calls, which are no part of what it is."""

    def __init__(self, limit=4):
        self.limit, self.calls = limit, 0

    @property
    def __yogadl_version__(self):
        return f"below {self.limit}"

    def __call__(self, record):
        self.calls += 1
        return bool(record["label"] < self.limit)


def kept(storage, dataset="d"):
    return sorted(Path(storage.location).glob(f"{dataset}/tables/*/*.selection"))


def labels(ref):
    return ref.gather(range(len(ref)))["label"].tolist()


def wanted(limit=4):
    return [label for label in (np.arange(RECORDS) % 10).tolist() if label < limit]


def check(ref, *, is_found):
    """Check what is selected, and whether that was found or worked out."""
    choose = Counted()
    assert labels(ref.filter(choose)) == wanted()
    assert choose.calls == (0 if is_found else RECORDS)


# Found again.


def test_what_was_selected_is_found_by_the_next_call_and_takes_little(storage, ref):
    check(ref, is_found=False)
    check(ref, is_found=True)
    check(storage.fetch("d", "1"), is_found=True)
    check(pickle.loads(pickle.dumps(ref)), is_found=True)
    check(yogadl.open_storage(storage.location).fetch("d", "1", check=True), is_found=True)
    (file,) = kept(storage)
    assert file.stat().st_size < 500
    assert ref.fingerprint == file.parent.name


def test_another_process_finds_it(storage, ref):
    check(ref, is_found=False)
    in_child(check_in_child, storage.location, True)


def check_in_child(location, is_found):
    check(yogadl.open_storage(location).fetch("d", "1"), is_found=is_found)


def select_below(location, limit):
    ref = yogadl.open_storage(location).fetch("d", "1")
    return labels(ref.filter(lambda record: record["label"] < limit, fields=("label",)))


def test_a_function_has_the_same_name_in_every_process(storage, ref):
    assert in_child(select_below, storage.location, 3) == wanted(3)
    (file,) = kept(storage)
    assert select_below(storage.location, 3) == wanted(3)
    assert kept(storage) == [file]
    assert select_below(storage.location, 5) == wanted(5)
    assert len(kept(storage)) == 2


def test_the_selections_of_a_filter_of_views_are_kept_each_for_itself(storage, ref):
    views = {
        "all": lambda: ref,
        "some": lambda: ref[::2],
        "others": lambda: ref[1::2],
        "chosen": lambda: ref.select([3, 1, 2]),
        "fields": lambda: ref.fields("label"),
        "mapped": lambda: ref.map(lambda r: {"label": r["label"]}),
        "mapped to others": lambda: ref.map(lambda r: {"label": 9 - r["label"]}),
        "filtered": lambda: ref.filter(lambda r: r["label"] > 1),
        "fields of some": lambda: ref.fields("label")[::2],
        "some of what is mapped": lambda: ref.map(lambda r: {"label": r["label"]})[::2],
    }
    for is_found in (False, True):
        for make in views.values():
            view = make()
            choose = Counted()
            found = view.filter(choose)
            assert labels(found) == [label for label in labels(view) if label < 4]
            assert choose.calls == (0 if is_found else len(view))
    assert len(kept(storage)) == len(views) + 1  # and that of the function that made "filtered"


def test_versions_of_the_same_records_share_it_and_others_do_not(storage, ref):
    check(ref, is_found=False)
    submit(storage, "2")
    submit(storage, "3", shift=1)
    check(storage.fetch("d", "2"), is_found=True)
    choose = Counted()
    storage.fetch("d", "3").filter(choose)
    assert choose.calls == RECORDS
    submit(storage, "1", shift=2)  # replaced
    choose = Counted()
    assert len(storage.fetch("d", "1").filter(choose)) == 80
    assert choose.calls == RECORDS
    check(ref, is_found=True)  # which reads the records that it was fetched with


MODULE = """
LIMIT = {limit}

def helper(value):
    return value < LIMIT

def choose(record, most={most}):
    {comment}
    return bool(helper(record["label"]) and record["label"] != most)
"""


def choose_of(folder, **changes):
    """Return the function of a module of the user's, as it would be imported after an edit."""
    path = folder / f"edited_{len(list(folder.glob('edited_*')))}.py"
    path.write_text(MODULE.format(**({"limit": 4, "most": 99, "comment": "# nothing"} | changes)))
    spec = importlib.util.spec_from_file_location("edited", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.choose


def test_an_edit_of_the_function_or_of_what_it_uses_selects_anew(storage, ref, tmp_path):
    counts = []
    for changes in ({}, {"comment": "# another comment"}, {"limit": 3}, {"most": 2}, {"limit": 4}):
        found = ref.filter(choose_of(tmp_path, **changes))
        limit, most = changes.get("limit", 4), changes.get("most", 99)
        assert labels(found) == [label for label in wanted(limit) if label != most]
        counts.append(len(kept(storage)))
    assert counts == [1, 1, 2, 3, 3]


def test_defaults_behind_a_decorator_count(storage, ref):
    def decorated(most):
        def inner(record, limit):
            return bool(record["label"] < limit)

        def wrapper(record, limit=most):
            return inner(record, limit)

        wrapper.__wrapped__ = inner
        return wrapper

    assert labels(ref.filter(decorated(3))) == wanted(3)
    assert labels(ref.filter(decorated(5))) == wanted(5)


def test_workers_and_fields_by_one_name_or_several_find_the_same(storage, ref):
    ref.filter(Counted(), fields="label", workers=2)
    choose = Counted()
    ref.filter(choose, fields=("label",))
    assert choose.calls == 0
    ref.filter(choose, fields=("x", "label"))
    assert choose.calls == RECORDS


def test_an_error_keeps_nothing(storage, ref):
    for choose in (lambda record: None, lambda record: 1 / 0):
        with pytest.raises(yogadl.errors.StageError):
            ref.filter(choose)
    assert kept(storage) == []


# Kept in memory alone.


def test_a_function_that_has_no_description_is_asked_each_time(storage, ref, caplog):
    lock, calls = threading.Lock(), []

    def choose(record):
        with lock:
            calls.append(1)
            return bool(record["label"] < 4)

    with caplog.at_level(logging.INFO, "yogadl"):
        for _ in range(2):
            assert labels(ref.filter(choose)) == wanted()
    assert len(calls) == 2 * RECORDS
    assert kept(storage) == []
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG, "yogadl"):
        ref.filter(choose)
    (said,) = caplog.records
    assert "what test_a_function_that_has_no_description" not in said.message
    assert "choose is kept only in memory" in said.message
    assert "'lock'" in said.message


def test_what_can_not_be_written_is_kept_by_the_reference(storage, ref, monkeypatch, caplog):
    def refuse(*_):
        raise StorageError(errno.EROFS, "read-only")

    monkeypatch.setattr(Folder, "write", refuse)
    with caplog.at_level(logging.INFO, "yogadl"):
        check(ref, is_found=False)
        check(ref, is_found=True)
        check(storage.fetch("d", "1"), is_found=False)
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG, "yogadl"):
        check(storage.fetch("d", "1"), is_found=False)
    assert "is kept only in memory" in caplog.text
    assert kept(storage) == []


def test_a_source_without_a_storage_is_asked_each_time():
    ref = yogadl.from_source({"label": np.arange(RECORDS) % 10}, fingerprint="numbers")
    check(ref, is_found=False)
    check(ref, is_found=False)


# Never believed.


# What its reader refuses is in tests/format/test_format_selection.py.
DAMAGES = {
    "cut": lambda content: content[:-7],
    "longer": lambda content: content + b"x" * 2**20,
    "empty": lambda content: b"",
    "changed": lambda content: content[:-5] + bytes([content[-5] ^ 0xFF]) + content[-4:],
    "other records": lambda content: forged(content, np.array([0, RECORDS])),
    "a negative record": lambda content: forged(content, np.array([-1, 3])),
    "of more records": lambda content: forged(content, selected=80, records=RECORDS + 1),
    "of another function": lambda content: forged(content, selected=80, name="0" * 64),
    "of fewer selected": lambda content: forged(content, selected=1),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "huge"])
def test_what_is_damaged_or_forged_is_worked_out_again_and_mended(storage, ref, damage):
    check(ref, is_found=False)
    (file,) = kept(storage)
    content = file.read_bytes()
    if damage == "huge":
        with file.open("wb") as huge:
            huge.truncate(2**40)
    else:
        file.write_bytes(DAMAGES[damage](content))
    check(ref, is_found=False)
    assert file.read_bytes() == content
    check(ref, is_found=True)


def forged(content, array=None, **changes):
    """Return a file with another array or other words, whose checksum is right."""
    file = ArrayFile.from_buffer(content, "it")
    array = file.arrays["selection"] if array is None else array
    words = {"selected": len(array), "sha256": hashlib.sha256(array.tobytes()).hexdigest()}
    return ArrayFile({"selection": array}, file.document | words | changes).to_bytes()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "linked folder"])
def test_what_is_no_file_is_neither_followed_nor_waited_for(storage, ref, kind, tmp_path):
    check(ref, is_found=False)
    (file,) = kept(storage)
    content = file.read_bytes()
    other = tmp_path / "others"
    if kind == "linked folder":
        file.parent.rename(other)
        file.parent.symlink_to(other)
        (other / file.name).write_bytes(b"theirs")
    else:
        file.unlink()
        if kind == "link":
            other.write_bytes(content)
            file.symlink_to(other)
        elif kind == "pipe":
            os.mkfifo(file)
        else:
            file.mkdir()
    check(storage.fetch("d", "1"), is_found=False)
    if kind == "linked folder":
        assert (other / file.name).read_bytes() == b"theirs"  # nothing is written there, either
    elif kind != "folder":
        assert file.read_bytes() == content
        assert not file.is_symlink()


# In order.


def test_many_processes_at_once_keep_one_whole_file(storage, ref):
    with processes(check_again, [(storage.location,)] * 6) as running:
        assert {process.result() for process in running} == {True}
    assert len(kept(storage)) == 1
    check(ref, is_found=True)
    assert not list(Path(storage.location).rglob("*.tmp"))


def check_again(location):
    ref = yogadl.open_storage(location).fetch("d", "1")
    return all(labels(ref.filter(Counted())) == wanted() for _ in range(5))


def test_nobody_else_minds_it(storage, ref, yoga):
    check(ref, is_found=False)
    assert storage.datasets() == ["d"]
    assert storage.versions("d") == ["1"]
    assert storage.verify("d", "1").records == RECORDS
    assert storage.unfinished() == []
    for command in (["ls"], ["ls", "d"], ["info", "d", "1"], ["verify", "d", "1"], ["doctor"]):
        assert yoga(*command, "-s", storage.location).code == 0
    assert storage.prune(grace_s=0).files == ()
    check(ref, is_found=True)


def test_it_is_pruned_with_the_last_version_of_its_records(storage, ref, days_go_by):
    submit(storage, "2")
    submit(storage, "3", shift=1)
    check(ref, is_found=False)
    storage.fetch("d", "3").filter(Counted())
    (of_third,) = [file for file in kept(storage) if file.parent.name != ref.fingerprint]
    storage.delete("d", "1")
    days_go_by(31)
    storage.prune()
    assert len(kept(storage)) == 2  # version 2 has the same records
    storage.delete("d", "2")
    days_go_by(29)
    assert not [name for name in storage.prune().files if name.endswith(".selection")]
    storage.undelete("d", "2")
    check(storage.fetch("d", "2"), is_found=True)
    storage.delete("d", "2")
    days_go_by(31)
    (name,) = [name for name in storage.prune(dry_run=True).files if name.endswith(".selection")]
    assert len(kept(storage)) == 2
    assert name in storage.prune().files
    assert kept(storage) == [of_third]


def test_one_that_is_younger_than_the_grace_stays_and_goes_later(storage, ref, days_go_by):
    storage.delete("d", "1")
    days_go_by(31)
    check(ref, is_found=False)  # by a job that still reads what was deleted
    (file,) = kept(storage)
    os.utime(file, (time.time() + 31 * DAY_S,) * 2)
    storage.prune()
    assert kept(storage) == [file]
    assert storage.datasets() == []
    days_go_by(31)
    assert f"d/tables/{ref.fingerprint}/{file.name}" in storage.prune().files
    assert kept(storage) == []


def test_what_is_not_named_as_one_is_not_pruned(storage, ref, days_go_by):
    check(ref, is_found=False)
    (file,) = kept(storage)
    names = ("notes.txt", f"../{file.name}", f"{'A' * 24}.selection")
    others = [file.parent / name for name in names]
    for other in others:
        other.write_bytes(b"mine")
    storage.delete("d", "1")
    days_go_by(31)
    storage.prune()
    assert not file.exists()
    assert all(other.exists() for other in others)


# Copies.


@pytest.mark.parametrize("options", [{}, {"shared": True}], ids=["folder", "shared"])
def test_a_copy_takes_what_was_selected_along(storage, ref, tmp_path, options):
    check(ref, is_found=False)
    target = yogadl.open_storage(tmp_path / "copies", **options)
    assert copy(storage, target, "d", "1")
    check(target.fetch("d", "1"), is_found=True)
    assert not copy(storage, target, "d", "1")
    ref.filter(Counted(7))
    assert copy(storage, target, "d", "1")  # that one is new
    assert len(kept(target)) == 2
    assert not copy(storage, target, "d", "1")


def test_only_what_is_sound_and_of_these_records_is_copied(storage, ref, tmp_path):
    submit(storage, "2", shift=1)
    storage.fetch("d", "2").filter(Counted())
    for limit in (1, 2, 3, 4):
        ref.filter(Counted(limit))
    files = [file for file in kept(storage) if file.parent.name == ref.fingerprint]
    files[0].write_bytes(files[0].read_bytes()[:-1])
    files[1].write_bytes(files[2].read_bytes())  # which is another's
    with files[3].open("ab") as file:
        file.truncate(2**40)
    target = yogadl.open_storage(tmp_path / "copies")
    assert copy(storage, target, "d", "1")
    assert [file.name for file in kept(target)] == [files[2].name]


def test_a_shared_folder_keeps_them_too(tmp_path):
    storage = yogadl.open_storage(tmp_path, shared=True)
    submit(storage)
    check(storage.fetch("d", "1"), is_found=False)
    check(storage.fetch("d", "1"), is_found=True)
    (file,) = kept(storage)
    file.write_bytes(b"damaged")
    check(storage.fetch("d", "1"), is_found=False)
    check(storage.fetch("d", "1"), is_found=True)
    assert storage.prune(grace_s=0).files == ()


LOADS = """
import sys, yogadl
ref = yogadl.open_storage(sys.argv[1]).fetch("d", "1")
list(ref.stream())
names = {"yogadl._views.chosen", "yogadl.storage._catalogue.selections"}
assert not names & sys.modules.keys()
ref.filter(lambda record: True)
assert names <= sys.modules.keys()
"""


def test_reading_a_filtered_reference_loads_what_filters_only_then(storage, ref):
    subprocess.run([sys.executable, "-c", LOADS, storage.location], check=True)
