"""Cursors go on from adopted files to copies and back, and killed processes leave nothing behind."""

import os
import random
import signal
import time

import numpy as np
import pytest
from adopted_files import FORMATS, every, plain, write, write_numbered
from inside import DatasetKey, adopted, begin_build, set_constants, source_of
from processes import Process, until

import yogadl
from yogadl.errors import CursorError


def upper(line):
    return line.upper()


def length_of(record):
    return {"length": np.int64(len(record))}


VIEWS = {
    "all": lambda ref: ref,
    "slice": lambda ref: ref[5:60:2],
    "twice": lambda ref: ref[3:].select(list(range(40, 0, -1))),
    "map": lambda ref: ref.map(upper),
    "map of a slice": lambda ref: ref[:50].map(upper),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("read", [True, False])
def test_one_cursor_goes_through_adopted_files_and_all_copies(tmp_path, storage, read, view):
    write_numbered(tmp_path / "in", "jsonl", [20, 1, 30, 24])
    storage.adopt(f"{tmp_path}/in", "d", "adopted", format="jsonl", files=yogadl.FileOptions(read=read))
    storage.submit(storage.fetch("d", "adopted"), "d", "copy")
    storage.compact("d", "copy", "compact")
    storage.compact("d", "adopted", "direct")
    storage.adopt(f"{tmp_path}/in", "d", "again", format="jsonl", files=yogadl.FileOptions(read=read))
    storage.submit(storage.fetch("d", "copy"), "d", "copy of a copy")
    versions = ["adopted", "copy", "compact", "direct", "again", "copy of a copy"]
    refs = [VIEWS[view](storage.fetch("d", version)) for version in versions]
    if not read:  # a weak fingerprint is an alias of the copies; theirs is none of the files
        refs_to = {n: range(6) if n in (0, 3, 4) else (1, 2, 5) for n in range(6)}
    else:
        refs_to = dict.fromkeys(range(6), range(6))
    order = {"shuffle": True, "shuffle_seed": 5}
    whole = list(refs[0].stream(**order))
    assert sorted(whole) == sorted(refs[0].gather(range(len(refs[0]))))
    rng = random.Random(view)
    for _ in range(20):
        at, cursor, seen = 0, None, []
        while True:
            iterator = iter(refs[at].stream(cursor=cursor, **order))
            stop = rng.randrange(1, 25)
            for _ in range(stop):
                found = next(iterator, None)
                if found is None:
                    break
                seen.append(found)
            if found is None:
                break
            cursor = iterator.state_dict()
            at = rng.choice(list(refs_to[at]))
        assert seen == whole


@pytest.mark.parametrize("form", FORMATS)
def test_a_cursor_of_batches_and_threads_goes_on_in_a_copy(tmp_path, storage, form):
    expected = [plain(each) for each in write_numbered(tmp_path / "in", form, [20, 1, 30])]
    for read in (True, False):
        storage.adopt(f"{tmp_path}/in", "d", f"{read}", format=form, files=yogadl.FileOptions(read=read))
        storage.submit(storage.fetch("d", f"{read}"), "d", f"copy-{read}")
        options = {"shuffle": True, "shuffle_seed": 1}
        batches = iter(storage.fetch("d", f"{read}").stream(**options).prefetch(2))
        seen = [plain(next(batches)) for _ in range(17)]
        cursor = batches.state_dict()
        rest = storage.fetch("d", f"copy-{read}").stream(cursor=cursor, **options)
        seen += [plain(each) for each in rest]
        assert sorted(map(repr, seen)) == sorted(map(repr, expected))


def as_dict(tokens):
    return {"tokens": tokens}


TOKENS = {"tokens": yogadl.Leaf("int32", (None,))}
ROWS_OF_TOKENS = {
    "chunks": lambda ref: ref.chunks(None, 16),
    "packs": lambda ref: ref.map(as_dict, spec=TOKENS).packed(64, fields="tokens"),
}


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("name", ROWS_OF_TOKENS)
def test_chunks_and_packs_of_adopted_tokens_go_on_in_a_copy(tmp_path, storage, name, read):
    write_numbered(tmp_path / "in", "megatron", [20, 1, 30])
    first = storage.adopt(f"{tmp_path}/in", "d", "1", format="megatron", files=yogadl.FileOptions(read=read))
    ours, copied = map(ROWS_OF_TOKENS[name], (first, storage.submit(first, "d", "copy")))
    iterator = iter(ours.stream(shuffle=True, shuffle_seed=2))
    seen = [plain(next(iterator)) for _ in range(4)]
    rest = copied.stream(shuffle=True, shuffle_seed=2, cursor=iterator.state_dict())
    whole = [plain(each) for each in ours.stream(shuffle=True, shuffle_seed=2)]
    assert seen + [plain(each) for each in rest] == whole
    assert len(whole) > 10
    assert [plain(each) for each in ours.stream()] == [plain(each) for each in copied.stream()]


def test_the_cursor_of_a_copy_is_refused_by_files_that_were_not_read(tmp_path, storage):
    write_numbered(tmp_path / "in", "jsonl", [20])
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl", files=yogadl.FileOptions(read=False))
    storage.submit(storage.fetch("d", "1"), "d", "2")
    iterator = iter(storage.fetch("d", "2").stream())
    next(iterator)
    with pytest.raises(CursorError):
        next(iter(storage.fetch("d", "1").stream(cursor=iterator.state_dict())))


def test_adopted_and_ordinary_versions_mix_and_follow_each_other(tmp_path, storage):
    expected = [plain(each) for each in write_numbered(tmp_path / "in", "jsonl", [20, 30])]
    storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
    ordinary = [b"ordinary %d" % number for number in range(25)]
    storage.submit(ordinary, "o", "1")
    lines, other = storage.fetch("d", "1"), storage.fetch("o", "1")
    both = yogadl.concat([other, lines])
    assert every(both) == ordinary + expected
    assert sorted(both.stream(shuffle=True, shuffle_seed=1)) == sorted(ordinary + expected)
    storage.submit(both, "b", "1")
    assert every(storage.fetch("b", "1")) == ordinary + expected
    mixed = list(yogadl.mix({"a": (lines, 0.5), "b": (other, 0.5)}).stream())
    assert {line.startswith(b"ordinary") for line in mixed} == {True, False}
    assert set(mixed) <= {*ordinary, *expected}


# Killed in the middle.


def adopt_slowly(folder, verb, workers, log, stop_at):
    """Adopt, or refresh, a file a group; log which are read, and wait to be killed after so many."""
    adopted._GROUPS, adopted._LEAST_GROUP_BYTES, adopted._LEAST_UNREAD_FILES = 10**9, 1, 1
    columns = adopted._FilesToAdopt._columns

    def noted(self):
        with open(log, "a+") as file:
            file.write(f"{self}\n")
            file.seek(0)
            if len(file.readlines()) >= stop_at:
                time.sleep(100)
        return columns(self)

    adopted._FilesToAdopt._columns = noted
    storage = yogadl.open_storage(f"{folder}/caches")
    if verb == "refresh":
        storage.refresh("d", "1", "2", workers=workers)
    else:
        storage.adopt(f"{folder}/in", "d", "2", format="jsonl", workers=workers)


def kill_once(process, what, is_so):
    for _ in until(60, what):
        if is_so():
            break
    os.kill(process.pid, signal.SIGKILL)
    process.kill()


@pytest.mark.parametrize("verb", ["adopt", "refresh"])
def test_a_killed_call_goes_on_without_reading_again_what_it_finished(tmp_path, storage, verb):
    count, stop_at = 30, 14
    expected = prepared(tmp_path, storage, verb, count)
    log = tmp_path / "log"
    log.touch()
    with Process(adopt_slowly, str(tmp_path), verb, 0, str(log), stop_at) as process:
        kill_once(process, "files to be read", lambda: len(log.read_text().split()) >= stop_at)
    before = log.read_text().split()
    with pytest.raises(yogadl.errors.DatasetNotFoundError):
        storage.fetch("d", "2")
    log.write_text("")
    with Process(adopt_slowly, str(tmp_path), verb, 0, str(log), 10**9) as process:
        process.result(100)
    after = log.read_text().split()
    assert every(storage.fetch("d", "2")) == expected
    assert set(before) & set(after) == {before[-1]}
    assert {*before, *after} == {f"{tmp_path}/in/{k:03d}.jsonl" for k in range(count)}
    assert storage.verify("d", "2").records == 2 * count


@pytest.mark.parametrize("verb", ["adopt", "refresh"])
def test_killed_workers_leave_parts_that_are_used(tmp_path, storage, verb):
    count = 100
    expected = prepared(tmp_path, storage, verb, count)
    log = tmp_path / "log"
    log.touch()
    had = set((tmp_path / "caches").rglob("*.mdb"))
    with Process(adopt_slowly, str(tmp_path), verb, 2, str(log), 10**9) as process:
        parts = tmp_path / "caches/d/parts"
        kill_once(process, "parts to be written", lambda: len(set(parts.glob("*.mdb")) - had) >= 10)
    finished = {path: path.stat().st_ino for path in (tmp_path / "caches/d/parts").glob("*.mdb")}
    assert 10 <= len(finished) < count
    with pytest.raises(yogadl.errors.DatasetNotFoundError):
        storage.fetch("d", "2")
    with Process(adopt_slowly, str(tmp_path), verb, 2, str(log), 10**9) as process:
        process.result(100)
    assert every(storage.fetch("d", "2")) == expected
    kept = [path for path, number in finished.items() if path.exists() and path.stat().st_ino == number]
    assert len(kept) >= len(finished) // 2  # the others belong to groups that were not finished
    assert storage.verify("d", "2").records == 2 * count


def prepared(tmp_path, storage, verb, count):
    """Write files, and for a refresh a version of another file."""
    if verb == "refresh":
        write(tmp_path / "in/zzz.jsonl", "jsonl", [b"last"])
        storage.adopt(f"{tmp_path}/in", "d", "1", format="jsonl")
        (tmp_path / "in/zzz.jsonl").unlink()
    return write_numbered(tmp_path / "in", "jsonl", [2] * count)


def test_tasks_on_several_machines_adopt_one_version(tmp_path, storage, monkeypatch):
    set_constants(monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=1)
    expected = [plain(each) for each in write_numbered(tmp_path / "in", "webdataset", [3, 1, 4, 1, 5])]
    backend = storage._backend
    for read in (True, False):
        key = DatasetKey("d", f"{read}")

        def build(key=key, read=read):
            source = source_of(backend, f"{tmp_path}/in", "webdataset", read)
            return begin_build(backend, key, None, None, source)

        count = build().partitions
        for number in sorted(range(count), reverse=True):
            build().write(number)
        build().commit()
        assert every(storage.fetch("d", f"{read}")) == expected
        storage.adopt(
            f"{tmp_path}/in", "d", f"alone-{read}", format="webdataset", files=yogadl.FileOptions(read=read)
        )
        assert storage.fetch("d", f"alone-{read}").fingerprint == storage.fetch("d", f"{read}").fingerprint
