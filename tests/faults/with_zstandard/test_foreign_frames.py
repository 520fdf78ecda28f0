"""Frames and entries of a stranger: one clear error, and no memory beyond what the entry says."""

import hashlib
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forge
import numpy as np
import pytest
import zstandard
from inside import ArrayFile
from processes import in_fork

import yogadl
from yogadl.errors import CacheFormatError, YogaError

MEMORY_BYTES = 2**29
TEXT = [(b"a record of a batch of a shard " * (20 + n % 50)) + str(n).encode() for n in range(60)]
ROWS = np.arange(60 * 300, dtype=np.uint8).reshape(60, 300) // 7


@pytest.fixture(params=["text", "row"])
def forgery(tmp_path: Path, request: pytest.FixtureRequest) -> forge.Forgery:
    """A cache of one field, of values that vary or of rows, each value a frame."""
    source = {"text": TEXT, "row": ROWS}[request.param]
    codec = yogadl.Zstd(dictionary=False)
    yogadl.open_storage(tmp_path / "root").submit({"x": source}, "data", "1", codec=codec)
    return forge.Forgery.of(tmp_path / "root")


def entries_of(forgery: forge.Forgery) -> Any:
    """Return the entries of the only part, and where they begin."""
    _, index = forgery.parts[0]
    (start,), (length,) = index.arrays["0.rows.position"], index.arrays["0.rows.length"]
    words = forgery.table.arrays["0.row_bytes"][0] // 4
    content = np.frombuffer(forgery.parts[0][0], np.uint8).copy()
    return content, content[start : start + length].view("<u4").reshape(-1, words)


def frame_at(forgery: forge.Forgery, content: Any, entry: Any) -> slice:
    start = int(forgery.table.arrays["0.heap_position"][0]) + int(entry[1])
    return slice(start, start + int(entry[2]))


def refused(forgery: forge.Forgery, content: Any, *, has_sound_records: bool = False) -> set[str]:
    """Write the part, with all hashes agreeing, and return what reading it in several ways says."""
    _, index = forgery.parts[0]
    changed = content.tobytes()
    forgery.parts[0] = changed, forge.with_checksums(index, changed)
    forgery.write()
    root = forgery.folder.parent
    calls: list[Callable[[Any], Any]] = [
        lambda ref: ref.gather(range(60)),
        lambda ref: next(iter(ref.stream(shuffle=True).batch(60))),
        lambda ref: ref[0],
    ]

    def read() -> list[str]:
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        messages = []
        for call in calls[:2] if has_sound_records else calls:
            for check in (False, True):
                try:
                    call(yogadl.open_storage(root).fetch("data", "1", check=check))
                    messages.append("nothing")
                except YogaError as error:
                    messages.append(f"{type(error).__name__}: {error}")
        return messages

    return set(in_fork(read))


Change = Callable[[Any, Any, slice], None]


def set_raw(length: int) -> Change:
    def change(content: Any, entry: Any, frame: slice) -> None:
        entry[3] = length

    return change


def set_stored(length: int) -> Change:
    def change(content: Any, entry: Any, frame: slice) -> None:
        entry[2] = length

    return change


def put(made: Callable[[int], bytes]) -> Change:
    """Put another frame in the place of the first, as long as that, for a value of its length."""

    def change(content: Any, entry: Any, frame: slice) -> None:
        size = frame.stop - frame.start
        new = made(int(entry[3]))[:size].ljust(size, b"\0")
        content[frame] = np.frombuffer(new, np.uint8)

    return change


def cut(length: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(range(256)) * 9)[:10]


CHANGES: dict[str, Change] = {
    "a length below that of the frame": set_raw(100),
    "a length above that of the frame": set_raw(5000),
    "a length that no frame can have": set_raw(2**32 - 1),
    "a length of 0": set_raw(0),
    "fewer bytes stored": set_stored(5),
    "more bytes stored than the block has": set_stored(2**31),
    "no frame": put(lambda length: b"\xff" * 40),
    "nothing but zeros": put(lambda length: b""),
    "a frame of another length": put(lambda length: zstandard.ZstdCompressor().compress(b"x" * (length + 1))),
    "a frame without a length": put(
        lambda length: zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * length)
    ),
    "a frame that ends early": put(cut),
    "a frame that asks for a dictionary": put(
        lambda length: b"\x28\xb5\x2f\xfd\x27" + (7).to_bytes(4, "little") + length.to_bytes(4, "little")
    ),
    "a frame that says it has gigabytes": put(
        lambda length: b"\x28\xb5\x2f\xfd\xe0" + (2**36).to_bytes(8, "little")
    ),
    "a window of gigabytes": put(lambda length: b"\x28\xb5\x2f\xfd\x80\xff" + length.to_bytes(4, "little")),
    "a frame to be skipped": put(lambda length: b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_frame_that_is_not_what_its_entry_says_is_refused(forgery: forge.Forgery, change: str) -> None:
    content, entries = entries_of(forgery)
    assert entries[0][2] < entries[0][3]
    CHANGES[change](content, entries[0], frame_at(forgery, content, entries[0]))
    for message in refused(forgery, content):
        assert message.startswith("CacheFormatError"), message
        assert "run storage.verify" in message


def test_values_that_share_a_frame_take_no_more_memory_than_the_table_says(forgery: forge.Forgery) -> None:
    content, entries = entries_of(forgery)
    largest = entries[np.argmax(entries[:, 3])].copy()
    entries[:] = largest
    if len(set(entries[:, 3].tolist())) == 1 and largest[3] * 60 <= forgery.table.arrays["0.raw_bytes"][0]:
        pytest.skip("rows have one length: these are as large as the table says")
    (message,) = refused(forgery, content, has_sound_records=True)
    assert "the same bytes" in message


@pytest.mark.parametrize(
    ("what", "value"),
    [
        *(("codec", value) for value in (-1, 2, 2**62)),
        *(("dictionary", value) for value in (-2, 0, 2**62)),
        *(("raw_bytes", value) for value in (-1, 0, 2**40, 2**62)),
        *(("varying", value) for value in (0, 2, 255)),
    ],
)
def test_a_table_with_other_codecs_is_refused(forgery: forge.Forgery, what: str, value: int) -> None:
    array = forgery.table.arrays[f"0.{what}"]
    forgery.table.arrays[f"0.{what}"] = np.full_like(array, value)
    forgery.write()
    with pytest.raises(CacheFormatError):
        yogadl.open_storage(forgery.folder.parent).fetch("data", "1")[0]


@pytest.mark.parametrize(
    ("codec", "says"),
    [(["lz4"], "'lz4', unknown"), (["raw"], "codecs"), ([], "wrong kind"), (["zstd"] * 2, "wrong")],
)
def test_a_manifest_with_other_codecs_is_refused(forgery: forge.Forgery, codec: list[str], says: str) -> None:
    forgery.manifest["codec"] = codec
    forgery.write()
    with pytest.raises(CacheFormatError, match=says):
        yogadl.open_storage(forgery.folder.parent).fetch("data", "1")[0]


@pytest.mark.parametrize("form", [3, "2", None])
def test_a_table_of_another_form_is_refused_by_name(forgery: forge.Forgery, form: Any) -> None:
    forgery.table.document["parts"] = form
    forgery.write()
    with pytest.raises(CacheFormatError, match=f"has the form {form!r}: upgrade yogadl"):
        yogadl.open_storage(forgery.folder.parent).fetch("data", "1")[0]


def test_a_container_of_another_time_is_refused_by_name(forgery: forge.Forgery) -> None:
    forgery.manifest["table"]["container"] = "foreign-2"
    forgery.write()
    with pytest.raises(CacheFormatError, match="needs 'foreign-2', unknown to this library: upgrade yogadl"):
        yogadl.open_storage(forgery.folder.parent).fetch("data", "1")
    assert json.loads((forgery.folder / "versions" / "1.json").read_bytes())["codec"] == ["zstd"]


def crafted(dictionary: bytes) -> bytes:
    """Return a dictionary with tables that are none."""
    return dictionary[:8] + b"\xff" * 64 + dictionary[72:]


def test_a_dictionary_that_is_none_is_refused_by_readers_and_by_verify(tmp_path: Path) -> None:
    words = np.random.default_rng(0).integers(0, 50, (4000, 30))
    text = [" ".join(f"a word {number} of a text" for number in row).encode() for row in words.tolist()]
    root = tmp_path / "root"
    yogadl.open_storage(root).submit({"x": text}, "data", "1", codec="zstd")
    forgery = forge.Forgery.of(root)
    (path,) = root.rglob("*.dict")
    content = crafted(path.read_bytes())
    name = hashlib.sha256(content).hexdigest()
    (path.parent / f"{name}.dict").write_bytes(content)
    table = forgery.table.arrays
    table["dictionary.sha256"] = np.frombuffer(bytes.fromhex(name), np.uint8).reshape(1, 32)
    forgery.parts = [
        (part, ArrayFile(index.arrays, json.loads(json.dumps(index.document).replace(path.stem, name))))
        for part, index in forgery.parts
    ]
    forgery.write()
    storage = yogadl.open_storage(root)
    ref = storage.fetch("data", "1")
    for _ in range(2):
        with pytest.raises(CacheFormatError, match="dictionary of compressed values is damaged"):
            ref.gather([0, 5])
    with pytest.raises(CacheFormatError, match="dictionary of compressed values is damaged"):
        storage.verify("data", "1")
