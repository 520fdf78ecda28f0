"""A download that is killed is gone on with: what is there is asked for no more, what is wrong goes."""

import json
import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from inside import DatasetKey, partial_file, set_constants
from mirrors import litter_in
from places import Place
from processes import Process, processes, wait_until
from store_proxy import stalls
from turns import by_turns

import yogadl

ROWS = np.random.default_rng(5).integers(0, 255, (1_250, 4_096), np.uint8)
RANGE_BYTES = 2**20
# Of the part's five or six ranges.
BEFORE = 3


def set_ranges(patch):
    set_constants(patch, LEAST_RANGE_BYTES=RANGE_BYTES, MOST_RANGE_BYTES=RANGE_BYTES)
    set_constants(patch, WRITE_BYTES=RANGE_BYTES // 4)


def fetch(place, mirror):
    with pytest.MonkeyPatch.context() as patch:
        set_ranges(patch)
        ref = place.storage(mirror=mirror).fetch("data", "1")
        assert np.array_equal(ref.gather(range(len(ref)))["row"], ROWS)
    return "whole"


def of_part(request):
    return (
        request.is_of_bytes
        and "Range" in request.headers
        and ".mdb" in request.name
        and "data" in request.name
    )


def ranges_asked_for(proxy):
    return len({request.headers["Range"] for request in proxy.requests if of_part(request)})


def notes_in(mirror):
    return list(mirror.rglob(".*.ranges.tmp"))


def noted(mirror):
    return sum(max(0, len(path.read_bytes().splitlines()) - 1) for path in notes_in(mirror))


@contextmanager
def downloading(broken, mirror):
    """Give a process that has some ranges of a part, and gets no more; and how many ranges there are."""
    place, proxy = broken
    place.storage(mirror=mirror.with_name("of the builder")).submit({"row": ROWS}, "data", "1")
    lock, passed = threading.Lock(), []

    def is_late(request):
        if not of_part(request):
            return False
        with lock:
            passed.append(request)
            return len(passed) > BEFORE

    fetch(place, mirror.with_name("of another machine"))
    count = ranges_asked_for(proxy)
    assert count > BEFORE
    proxy.requests.clear()
    proxy.breaks(is_late, stalls())
    with Process(fetch, place, mirror) as child:
        wait_until(lambda: noted(mirror) == BEFORE, "some ranges")
        yield child, count
    proxy.rules.clear()


@pytest.fixture
def killed(broken, tmp_path):
    """A mirror to which a process brought some ranges of a part and was killed; and how many there are."""
    with downloading(broken, tmp_path / "mirror") as (child, count):
        child.kill()
    broken[1].requests.clear()
    return tmp_path / "mirror", count


def test_what_a_killed_download_has_brought_is_asked_for_no_more(broken, killed):
    (place, proxy), (mirror, count) = broken, killed
    assert fetch(place, mirror) == "whole"
    assert ranges_asked_for(proxy) == count - BEFORE
    assert litter_in(place.storage(mirror=mirror)._backend.catalogue.opener.mirror) == []


def test_progress_of_a_download_that_goes_on_ends_with_all_of_it(broken, killed, monkeypatch):
    set_ranges(monkeypatch)
    catalogue = broken[0].storage(mirror=killed[0])._backend.catalogue
    said = []
    manifest = catalogue.published(DatasetKey("data", "1")).manifest
    catalogue.opener.mirror.fill(manifest, progress=lambda done, total: said.append((done, total)))
    assert said[-1] == (manifest.size_bytes, manifest.size_bytes)


def test_several_who_go_on_with_it_do_so_once(broken, killed):
    (place, proxy), (mirror, count) = broken, killed
    with processes(fetch, [(place, mirror)] * 3) as children:
        assert [child.result() for child in children] == ["whole"] * 3
    assert sum(map(of_part, proxy.requests)) == count - BEFORE
    assert litter_in(place.storage(mirror=mirror)._backend.catalogue.opener.mirror) == []


def test_what_a_machine_without_power_lost_is_not_taken_for_there(broken, killed, tmp_path, monkeypatch):
    (place, proxy), (mirror, count) = broken, killed
    boot = tmp_path / "boot_id"
    boot.write_text("of another start\n")
    set_constants(monkeypatch, BOOT=boot)
    assert fetch(place, mirror) == "whole"
    assert ranges_asked_for(proxy) == count


DAMAGES = ["hole", "short", "long", "empty", "notes", "torn notes", "no notes"]


@pytest.mark.parametrize(
    ("broken", "damage"), by_turns(dict(zip(DAMAGES, DAMAGES, strict=True))), indirect=["broken"]
)
def test_whatever_became_of_what_was_there_the_file_is_whole(damage, broken, killed):
    (place, proxy), (mirror, count) = broken, killed
    [notes] = notes_in(mirror)
    data = notes.with_name(notes.name.replace(".ranges.tmp", ".tmp"))
    boot, first, *_ = notes.read_bytes().splitlines(keepends=True)
    start = json.loads(first)[0]
    with data.open("r+b") as file:
        if damage == "hole":
            file.seek(start)
            file.write(bytes(RANGE_BYTES // 8))
        elif damage in ("short", "long", "empty"):
            file.truncate({"short": start + 5, "long": 2**24, "empty": 0}[damage])
    if damage == "notes":
        notes.write_bytes(b"\xff\x00[" + notes.read_bytes())
    elif damage == "torn notes":
        notes.write_bytes(boot + first + b"[1048576, 209")
    elif damage == "no notes":
        notes.unlink()
    assert fetch(place, mirror) == "whole"
    assert litter_in(place.storage(mirror=mirror)._backend.catalogue.opener.mirror) == []
    if damage == "long":
        assert sum(map(of_part, proxy.requests)) == count - BEFORE  # it is cut, and nothing downloaded again


def test_ranges_of_two_objects_are_not_mixed(broken, killed):
    (place, proxy), (mirror, count) = broken, killed
    [notes] = notes_in(mirror)
    boot, *ranges = notes.read_bytes().splitlines()
    others = [json.dumps([*json.loads(line)[:2], "the tag of another"]).encode() for line in ranges]
    notes.write_bytes(b"\n".join([boot, *others, b""]))
    assert fetch(place, mirror) == "whole"
    assert ranges_asked_for(proxy) == count


def test_what_nobody_goes_on_with_is_removed_by_the_next_download(broken, tmp_path, monkeypatch):
    set_constants(monkeypatch, ABANDONED_S=-1.0)
    mirror = tmp_path / "mirror"
    with downloading(broken, mirror) as (child, _):
        storage = broken[0].storage(mirror=mirror)
        storage.submit([1], "other", "1")
        broken[0].storage(mirror=tmp_path / "other").submit([2, 3], "third", "1")
        storage.fetch("third", "1")
        assert noted(mirror) == BEFORE  # who lives keeps it
        child.kill()
    broken[0].storage(mirror=tmp_path / "other").submit([4, 5], "fourth", "1")
    storage.fetch("fourth", "1")
    assert litter_in(storage._backend.catalogue.opener.mirror) == []


def pipe(path, _):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link(path, outside):
    path.unlink(missing_ok=True)
    path.symlink_to(outside)


def text(content):
    def write(path, _):
        path.write_bytes(json.dumps(partial_file.boot()).encode() + b"\n" + content)

    return write


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("bytes", link),
        ("bytes", pipe),
        ("notes", link),
        ("notes", pipe),
        ("notes", text(b'["a", "b", "c"]\n')),
        ("notes", text(b"[0, 1.5, 3]\n[[], {}, 3]\n")),
        ("notes", text(b"[" * 200_000 + b"\n")),
    ],
    ids=["link", "pipe", "link for notes", "pipe for notes", "words", "broken numbers", "deep"],
)
def test_what_lies_there_in_place_of_a_partial_file_does_no_harm(tmp_path, what, make):
    url = (tmp_path / "caches").as_uri()
    yogadl.open_storage(url, mirror=tmp_path / "first").submit({"row": ROWS}, "data", "1")
    (part,) = (tmp_path / "caches").rglob("*.mdb")
    place = Place(url)
    names = dict(zip(("bytes", "notes"), partial_file.names_of(part), strict=True))
    folder = tmp_path / "mirror" / "caches/data/parts"
    place.storage(mirror=tmp_path / "mirror")._backend.catalogue.opener.mirror.sweep()
    folder.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (folder / names["bytes"].name).write_bytes(bytes(part.stat().st_size))
    make(folder / names[what].name, outside)
    assert fetch(place, tmp_path / "mirror") == "whole"
    assert outside.read_bytes() == b"mine"
    assert not any(path.is_symlink() for path in folder.iterdir())
