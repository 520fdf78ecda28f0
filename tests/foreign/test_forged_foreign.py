"""What a stranger's version of foreign files can't do to whoever reads it."""

import json
import random
import re
import resource
import signal
import sys
import time
from pathlib import Path

import forge
import numpy as np
import pytest
from adopted_files import every, write_numbered
from inside import ArrayFile, ForeignFile, ForeignFiles, PartTable, set_constants
from processes import in_fork

import yogadl
from yogadl.errors import CacheFormatError, YogaError

MEMORY_BYTES = 2**30
LIMIT_S = 60
COUNTS = [6, 1, 9]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Adopt three files, each in a part of its own."""
    set_constants(monkeypatch, GROUPS=10**9, LEAST_GROUP_BYTES=1)
    write_numbered(tmp_path / "in", "webdataset", COUNTS)
    yogadl.open_storage(tmp_path / "root").adopt(f"{tmp_path}/in", "data", "1", format="webdataset")
    return tmp_path / "root"


def forged(root, arrays):
    """Forge arrays of the part table; each is given as a function of the array that is there."""
    forgery = forge.Forgery.of(root)
    changed = dict(forgery.table.arrays)
    for name, change in arrays.items():
        changed[name] = np.ascontiguousarray(change(changed[name].copy()))
    forgery.table = ArrayFile(changed, forgery.table.document)
    forgery.write()


def outcomes(*calls):
    """Return how calls end, in a process that may not take a gigabyte more."""

    def run():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if sys.platform == "linux":
            [had_kb] = re.findall(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
            most_bytes = int(had_kb) * 1024 + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
        found = []
        for call in calls:
            signal.alarm(LIMIT_S)
            try:
                call()
                found.append("nothing")
            except YogaError as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    return in_fork(run)


def ways(root):
    def gather(**options):
        check = options.pop("check", False)
        ref = yogadl.open_storage(root, **options).fetch("data", "1", check=check)
        ref.gather(range(len(ref)))

    return (
        gather,
        lambda: gather(check=True),
        lambda: gather(mapped=False),
        lambda: list(yogadl.open_storage(root).fetch("data", "1").stream(shuffle=True).prefetch(2)),
        lambda: yogadl.open_storage(root).verify("data", "1"),
    )


def refused(root, match="damaged|no foreign file|is not the file|points outside|same bytes"):
    for message in outcomes(*ways(root)):
        assert message.startswith("CacheFormatError: "), message
        assert re.search(match, message), message


def put(place, value):
    def change(array):
        array[place] = value
        return array

    return change


CASES = {
    "ends that fall": {"foreign.ends": lambda ends: ends[::-1]},
    "ends past the text": {"foreign.ends": put(-1, 10**9)},
    "ends before the end": {"foreign.ends": put(-1, 3)},
    "an end that wraps": {"foreign.ends": put(-1, -(2**63))},
    "fewer ends": {"foreign.ends": lambda ends: ends[:-1]},
    "no files": {name: lambda array: array[:0] for name in ("foreign.ends", "foreign.text", "foreign.bytes")},
    "text that is none": {"foreign.text": put(slice(None), 255)},
    "text without a tag": {"foreign.text": lambda text: np.where(text == 0, 65, text).astype(np.uint8)},
    "text of zeros": {"foreign.text": put(slice(None), 0)},
    "a huge file": {"foreign.bytes": put(0, 2**46)},
    "huge files": {"foreign.bytes": put(slice(None), 2**45)},
    "sizes that wrap": {"foreign.bytes": put(slice(None), 2**63 - 1)},
    "a negative size": {"foreign.bytes": put(0, -1)},
    "a smaller size": {"foreign.bytes": put(0, 1000)},
    "a larger size": {"foreign.bytes": put(0, 10**6)},
    "bytes as a matrix": {"foreign.bytes": lambda array: array.reshape(-1, 1)},
    "bytes as one number": {"foreign.bytes": lambda array: array[0]},
    "ends as a matrix": {"foreign.ends": lambda array: array.reshape(-1, 1)},
    "a file of no number": {"1.heap_file": put(0, 3)},
    "a file of a huge number": {"1.heap_file": put(0, 2**62)},
    "a negative file": {"1.heap_file": put(0, -2)},
    "half in the part": {"1.heap_file": put(0, -1)},
    "all in the part": {"1.heap_file": put(slice(None), -1)},
    "too few files of blocks": {"1.heap_file": lambda array: array[:-1]},
    "a block past the file": {"1.heap_position": put(0, 10**7)},
    "a block before the file": {"1.heap_position": put(0, -1)},
    "a block that is too long": {"1.heap_length": put(0, 10**7)},
    "a block of more than 4 GB": {"foreign.bytes": put(0, 2**40), "1.heap_length": put(0, 2**32)},
    "blocks of nothing": {"1.heap_length": put(slice(None), 0), "1.raw_bytes": put(slice(None), 0)},
    "too many bytes of values": {"1.raw_bytes": put(0, 10**9)},
    "bytes of values that wrap": {"1.raw_bytes": put(slice(None), 2**63 - 1)},
    "a codec": {"1.codec": put(slice(None), 1)},
    "values of one size": {"1.varying": put(slice(None), 0)},
}


@pytest.mark.parametrize("case", CASES)
def test_forged_tables_are_refused(root, case):
    forged(root, CASES[case])
    refused(root, "")


def test_a_file_of_another_number_is_found_by_checksums(root):
    """Files of records are swapped: only the stranger's own files can be read so."""
    swapped = {"1.heap_file": lambda array: array[::-1], "1.heap_position": put(slice(None), 512)}
    forged(root, swapped)
    for message in outcomes(*ways(root)):
        assert message == "nothing" or message.startswith("CacheFormatError: ")
    assert all(message != "nothing" for message in outcomes(ways(root)[1], ways(root)[4]))


@pytest.mark.parametrize("word", [0, 1, 2])
@pytest.mark.parametrize("value", [1, 2**16, 2**31, 2**32 - 1])
def test_entries_that_point_outside_of_their_block_are_refused(root, word, value):
    forgery = forge.Forgery.of(root)
    content, index = forgery.parts[0]
    [position] = forgery.table.arrays["1.rows_position"][:1].tolist()
    changed = bytearray(content)
    entries = np.frombuffer(changed, "<u4", count=6 * 3, offset=position).reshape(6, 3)
    before = entries[2, word]
    entries[2, word] = value
    assert before != value
    forgery.parts[0] = bytes(changed), forge.with_checksums(index, bytes(changed), ".rows.")
    forgery.write()
    messages = outcomes(*ways(root)[:4])
    for message in messages:
        is_inside = word and value == 1  # one byte of the stranger's own block is nobody's secret
        assert is_inside or message.startswith("CacheFormatError: ")


def test_records_that_share_their_bytes_can_not_fill_the_memory(tmp_path):
    """Thousands of records that are all the whole file would be gigabytes."""
    folder, count = tmp_path / "in", 4000
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"".join(b"%d" % (k % 10) * 1000 + b"\n" for k in range(count)))
    yogadl.open_storage(tmp_path / "root").adopt(f"{folder}", "data", "1", format="jsonl")
    forgery = forge.Forgery.of(tmp_path / "root")
    content, index = forgery.parts[0]
    changed = bytearray(content)
    arrays = forgery.table.arrays
    rows = zip(arrays["0.rows_position"].tolist(), index.arrays["0.rows.length"].tolist(), strict=True)
    whole = int(arrays["0.heap_length"][0])
    for position, length in rows:
        entries = np.frombuffer(changed, "<u4", count=length // 4, offset=position).reshape(-1, 3)
        entries[:] = [0, 0, whole]
    forgery.parts[0] = bytes(changed), forge.with_checksums(index, bytes(changed), ".rows.")
    forgery.write()
    for message in outcomes(*ways(tmp_path / "root")[:4]):
        assert "the same bytes" in message


@pytest.mark.parametrize("count", [10**5, 10**6])
def test_a_table_of_very_many_files_is_opened_in_bounded_time(root, count):
    forgery = forge.Forgery.of(root)
    digits = (np.arange(count)[:, None] // 10 ** np.arange(6, -1, -1) % 10 + ord("0")).astype(np.uint8)
    each = np.frombuffer(b"/none/\0tag", np.uint8)
    text = np.hstack([np.tile(each[:6], (count, 1)), digits, np.tile(each[6:], (count, 1))])
    ends = np.arange(1, count + 1) * text.shape[1]
    arrays, had = dict(forgery.table.arrays), forgery.table.arrays
    arrays["foreign.text"] = np.concatenate([had["foreign.text"], text.reshape(-1)])
    arrays["foreign.ends"] = np.concatenate([had["foreign.ends"], had["foreign.ends"][-1] + ends])
    arrays["foreign.bytes"] = np.concatenate([had["foreign.bytes"], np.full(count, 10, np.int64)])
    forgery.table = ArrayFile(arrays, forgery.table.document)
    forgery.write()
    begun = time.monotonic()
    ref = yogadl.open_storage(root).fetch("data", "1")
    assert len(every(ref)) == sum(COUNTS)
    assert time.monotonic() - begun < 10


def test_random_forgeries_are_refused_or_read(root):
    """Nothing but errors of the library comes of them."""
    content = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def run():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        found = []
        for seed in range(90):
            for path, each in content.items():
                path.write_bytes(each)
            rng = random.Random(seed)
            forgery = forge.Forgery.of(root)
            if seed % 3:
                name = rng.choice([n for n in sorted(forgery.table.arrays) if "foreign" in n or "heap" in n])
                arrays = forgery.table.arrays | {name: forge.mutated_array(forgery.table.arrays[name], rng)}
                forgery.table = ArrayFile(arrays, forgery.table.document)
            else:
                part, index = forgery.parts[0]
                document = dict(index.document)
                document["foreign"] = forge.mutated(document["foreign"], rng)
                forgery.parts[0] = part, ArrayFile(index.arrays, document)
            forgery.write()
            signal.alarm(LIMIT_S)
            for call in ways(root):
                try:
                    call()
                    found.append("read")
                except YogaError:
                    found.append("refused")
        return sorted(set(found))

    assert in_fork(run) in (["read", "refused"], ["refused"])


def test_a_table_says_the_same_after_it_was_written_and_read(root):
    table = PartTable.from_file(forge.Forgery.of(root).table, "x")
    assert [file.address[-7:] for file in table.foreign] == ["000.tar", "001.tar", "002.tar"]
    assert table.to_file().to_bytes() == PartTable.from_file(table.to_file(), "x").to_file().to_bytes()
    assert list(table.compacted(table.index_sha256).foreign) == list(table.foreign)


@pytest.mark.parametrize(
    "document",
    [None, [], ["/a"], ["/a", 1], ["/a", "1", "t"], ["/a", True, "t"], ["/a", 1.0, "t"], {"a": 1},
     ["/a", 1, "t", 1], [b"/a".decode(), 1, None], ["/a", 1, "t\0"], [["/a"], 1, "t"]],
    ids=json.dumps,
)  # fmt: skip
def test_what_describes_no_file_is_refused(document):
    with pytest.raises(CacheFormatError, match="no foreign file"):
        ForeignFile.from_json(document, "x")


def test_files_of_every_name_come_back():
    names = ["a", "ü", "日本", "😀 x"]
    files = [ForeignFile(f"/a/{name}", number, f"{number}") for number, name in enumerate(names)]
    assert list(ForeignFiles.of(files)) == files
