"""Forge caches as a stranger could: change one thing of a small cache, and make every hash above it agree."""

import collections
import copy
import hashlib
import importlib.util
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import damage
import ml_dtypes
import numpy as np
from inside import ArrayFile, ForeignFile, ForeignFiles
from xxhash import xxh3_64_intdigest

import yogadl

Point = collections.namedtuple("Point", ["x", "y"])

NUMBERS = (
    -1, 0, 1, 2, 3, 7, 255, 4095, 4096, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40,
    2**46 - 1, 2**46, 2**47, 2**61 + 4096, 2**62, 2**63 - 2**16, 2**63 - 1, -(2**31), -(2**63),
)  # fmt: skip
DTYPES = (
    "", "O", "V8", "S3", "U3", "object", "str", "bytes", "bool", "int8", "float64", "complex128", "int4",
    "<i8", "int", "float128", "longdouble", "i8,i8", "(2,2)i4", "recarray", "object_", "void", "bfloat16",
    "bfloat16_", "float8_e4m3fn", "float8_", "int4.__class__", "uint2", "datetime64", "datetime64[s]",
    "datetime64[25s]", "datetime64[0s]", "datetime64[s/0]", "datetime64[s/2]", "datetime64[-1s]",
    "datetime64[s],O", "datetime64[s]" + ",i4" * 2000, "datetime64[generic]", "timedelta64[2147483648s]",
    "timedelta64[Y", "timedelta64[]", "datetime64[s]\n", "datetime64[[s]]",
)  # fmt: skip
SHAPES = ([], [3], [None], None, [0, 2**60], [2**40], [1] * 40, [-1])
TEXTS = (
    "", "x", "raw", "\0", "\n", "\x1b[2J", "\ud800", "../../../x", "/etc/passwd", "a" * 64, "0" * 64, "fi",
    "-" * 70_000, "(" * 3000, "x\n" * 30_000, "1+" * 30_000 + "1", "lambda: " * 3000 + "1", "_fields",
    "class", "def f():\n    return 1", "\ufb01", "lmdb-1", "pickle", "fixed", "varying", "NaN",
)  # fmt: skip
# What is changed below a manifest, the more often the more there is to it.
LOWER = (
    *("table", "table", "table", "header", "document"),
    *("index", "index", "index text", "index document", "entries", "part", "part text"),
)


def odd_values(rng: random.Random) -> Any:
    """Return a value that nobody expects."""
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice((None, True, False, [], {}, [[]], {"": None}, [None] * 3)),
        lambda: rng.choice((*NUMBERS, 2**64, 10**40, 10**4000, -(10**4000))),
        lambda: rng.choice((0.5, -1.5, 1e308, 1e999, -1e999, float("nan"))),
        lambda: rng.choice(DTYPES),
        lambda: rng.choice(TEXTS),
        lambda: nested(rng.choice((3, 60, 150, 300, 900)), rng.choice(("list", "dict"))),
        lambda: [rng.choice((0, [], "a", {}))] * rng.choice((5, 5000, 5000, 300_000)),
        lambda: {"leaf": {"dtype": rng.choice(DTYPES), "shape": rng.choice(SHAPES)}},
        lambda: {rng.choice(TEXTS): 1, rng.choice(TEXTS): rng.choice(NUMBERS)},
    ]
    return rng.choice(kinds)()


def nested(depth: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"list": value}
    return value


def mutated(document: Any, rng: random.Random) -> Any:
    """Return a JSON document with one node changed, removed, doubled, moved or added."""
    whole = [copy.deepcopy(document)]
    places = list(_places(whole))
    parent, key = rng.choice(places)
    change = rng.choice(("odd", "odd", "odd", "remove", "double", "move", "add", "shift"))
    value = parent[key]
    if change == "shift" and type(value) is int:
        parent[key] = rng.choice(
            (value + 1, value - 1, -value, value * 2, value * 2**32, float(value), str(value))
        )
    elif change == "remove" and parent is not whole:
        del parent[key]
    elif change == "double" and isinstance(value, list):
        parent[key] = value * rng.choice((2, 2, 50))
    elif change == "move":
        parent[key] = copy.deepcopy(_at(rng.choice(places)))
    elif change == "add" and isinstance(value, list):
        value.insert(rng.randrange(len(value) + 1), odd_values(rng))
    elif change == "add" and isinstance(value, dict):
        value[rng.choice(TEXTS)] = odd_values(rng)
    else:
        parent[key] = odd_values(rng)
    return whole[0] if whole else None


def _at(place: tuple[Any, Any]) -> Any:
    return place[0][place[1]]


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)


def mutated_text(text: bytes, rng: random.Random) -> bytes:
    """Return bytes with some changed, left out or put in."""
    changed = bytearray(text)
    for _ in range(rng.choice((1, 1, 4))):
        at, kind = rng.randrange(len(changed) + 1), rng.random()
        if kind < 0.4 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            del changed[at : at + rng.choice((1, 1, 8, 100_000))]
        elif kind < 0.8:
            changed[at:at] = rng.choice(
                (b"\0", b"[", b'{"a":', b"[" * 5000, b"1" * 5000, b"\xff\xfe", b'"\\ud800"', b"e99")
            )
        else:
            changed[at:at] = changed[at : at + rng.choice((1, 30, 300))]
    return bytes(changed)


def mutated_array(array: Any, rng: random.Random) -> Any:
    """Return an array with other numbers, another shape or another dtype."""
    change = rng.choice(("number",) * 8 + ("cut", "none", "twice", "shape", "type", "turn", "wrap"))
    if change == "cut":
        return array[:-1]
    if change == "none":
        return array[:0]
    if change == "twice":
        return np.concatenate([array, array])
    if change == "shape":
        return array.reshape(rng.choice(((1, *array.shape), (-1,), (*array.shape, 1))))
    if change == "type":
        wide = array.dtype.itemsize == 8
        return array.reshape(-1).view(rng.choice((np.uint8, np.int64, np.uint64)) if wide else np.uint8)
    if change == "turn":
        return array[::-1].copy()
    numbers = array.reshape(-1).tolist()
    if change == "wrap" and len(numbers) >= 4:
        numbers[:4] = [number + 2**62 for number in numbers[:4]]  # in 64 bits their sum is as before
    elif numbers:
        for at in rng.choice(([0], [-1], range(len(numbers)), [rng.randrange(len(numbers))])):
            near = numbers[at] + rng.choice((-4096, -8, -1, 1, 8, 4096))
            numbers[at] = near if rng.random() < 0.3 else rng.choice(NUMBERS)
    bits = 8 * array.dtype.itemsize
    wrapped = np.array([number % 2**bits for number in numbers], f"<u{array.dtype.itemsize}")
    return wrapped.view(array.dtype).reshape(array.shape)


@dataclass
class Forgery:
    """All of one version of a small cache, in memory."""

    folder: Path
    version: str
    manifest: Any
    table: ArrayFile
    parts: list[tuple[bytes, ArrayFile]]
    raw: dict[str, bytes] = field(default_factory=dict)  # what is written as it is

    @staticmethod
    def of(root: Path, version: str = "1") -> "Forgery":
        folder = root / "data"
        manifest = json.loads((folder / "versions" / f"{version}.json").read_bytes())
        table = _read(folder / "tables" / f"{manifest['table']['sha256']}.parts")
        parts = []
        for row, index in zip(table.arrays["part.sha256"], table.arrays["index.sha256"], strict=True):
            path = folder / "parts" / f"{row.tobytes().hex()}.mdb"
            named = folder / "parts" / f"{index.tobytes().hex()}.idx"
            parts.append((path.read_bytes(), _read(named if named.exists() else path.with_suffix(".idx"))))
        return Forgery(folder, version, manifest, table, parts)

    def name_files(self, change: Callable[[ForeignFile], ForeignFile], *, in_table: bool = True) -> None:
        """Name other foreign files: in the indexes, and in the part table."""
        arrays = dict(self.table.arrays)
        if in_table:
            had = ForeignFiles(*(arrays[f"foreign.{name}"] for name in ("bytes", "text", "ends")))
            files = ForeignFiles.of([change(file) for file in had])
            changed = {
                "foreign.bytes": files.size_bytes,
                "foreign.text": files.text,
                "foreign.ends": files.ends,
            }
            self.table = ArrayFile(arrays | changed, self.table.document)
        for number, (content, index) in enumerate(self.parts):
            named = [change(ForeignFile(*file)) for file in index.document["foreign"]]
            entry = [[file.address, file.size_bytes, file.tag] for file in named]
            self.parts[number] = content, ArrayFile(index.arrays, {**index.document, "foreign": entry})

    def mutate(self, rng: random.Random) -> str:
        """Change one thing, and say what."""
        what = rng.choice(("manifest", "manifest", "builder", "spec", "text", *LOWER))
        if what in ("manifest", "text"):
            return what  # once its hashes are known
        if what in ("builder", "spec"):
            self.manifest[what] = mutated(self.manifest[what], rng)
        elif what == "table":
            self.table = _mutated_file(self.table, rng)
        elif what == "header":
            self.raw["table"] = mutated_text(self.table.to_bytes(), rng)
        elif what == "document":
            self.table = ArrayFile(self.table.arrays, mutated(self.table.document, rng))
        elif not self.parts:
            return "nothing"
        else:
            self._mutate_part(what, rng)
        return what

    def _mutate_part(self, what: str, rng: random.Random) -> None:
        number = rng.randrange(len(self.parts))
        content, index = self.parts[number]
        if what == "index":
            index = _mutated_file(index, rng)
        elif what == "index document":
            index = ArrayFile(index.arrays, mutated(index.document, rng))
        elif what == "index text":
            self.raw[f"index {number}"] = mutated_text(index.to_bytes(), rng)
        elif what == "part text":
            content = mutated_text(content, rng)
        else:
            content = _with_words(content, _blocks(index, ".rows." if what == "entries" else ""), rng)
            index = with_checksums(index, content)
        self.parts[number] = content, index

    def write(self, what: str = "", rng: random.Random | None = None) -> None:
        """Write it over the cache that it was made of, and make all agree with it; with dice, most of it."""

        def likely(share: float) -> bool:
            return rng is None or rng.random() < share

        arrays, names = dict(self.table.arrays), []
        for number, (content, index) in enumerate(self.parts):
            index_bytes = self.raw.get(f"index {number}") or index.to_bytes()
            sha256, index_sha256 = _sha256(content), _sha256(index_bytes)
            names.append((sha256, index_sha256))
            for name, bytes_ in ((f"{sha256}.mdb", content), (f"{sha256}.idx", index_bytes)):
                (self.folder / "parts" / name).write_bytes(bytes_)
            (self.folder / "parts" / f"{index_sha256}.idx").write_bytes(index_bytes)
        for column, key in enumerate(("part.sha256", "index.sha256")):
            if key in arrays and arrays[key].shape == (len(names), 32) and likely(0.95):
                joined = bytes.fromhex("".join(pair[column] for pair in names))
                arrays[key] = np.frombuffer(joined, np.uint8).reshape(-1, 32)
        table = self.raw.get("table") or ArrayFile(arrays, self.table.document).to_bytes()
        self.manifest["table"] |= {"sha256": _sha256(table), "bytes": len(table)}
        if "part.bytes" in arrays and likely(0.7):
            self.manifest["bytes"] = sum(arrays["part.bytes"].reshape(-1).tolist())
        if "part.first_record" in arrays and arrays["part.first_record"].size and likely(0.7):
            self.manifest["records"] = int(arrays["part.first_record"].reshape(-1)[-1])
        (self.folder / "tables" / f"{_sha256(table)}.parts").write_bytes(table)
        document = mutated(self.manifest, rng) if rng and what == "manifest" else self.manifest
        text = json.dumps(document).encode()
        path = self.folder / "versions" / f"{self.version}.json"
        path.write_bytes(mutated_text(text, rng) if rng and what == "text" else text)


def _read(path: Path) -> ArrayFile:
    return ArrayFile.from_buffer(path.read_bytes(), str(path))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _mutated_file(file: ArrayFile, rng: random.Random) -> ArrayFile:
    arrays = dict(file.arrays)
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice(sorted(arrays))
        kind = rng.random()
        if kind < 0.85:
            arrays[name] = mutated_array(arrays[name], rng)
        elif kind < 0.9:
            arrays[name] = arrays[rng.choice(sorted(arrays))]
        elif len(arrays) > 1:
            del arrays[name]
    return ArrayFile(arrays, file.document)


def _blocks(index: ArrayFile, kind: str) -> list[tuple[str, int, int]]:
    """Return the name, the position and the length of the blocks of a part."""
    found = []
    for name, positions in index.arrays.items():
        if name.endswith(".position") and kind in name:
            lengths = index.arrays[name.replace("position", "length")]
            found += [(name, *pair) for pair in zip(positions.tolist(), lengths.tolist(), strict=True)]
    return found


def _with_words(content: bytes, blocks: list[tuple[str, int, int]], rng: random.Random) -> bytes:
    """Put odd numbers into blocks, where entries have theirs."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3))):
        _, at, length = rng.choice(blocks) if blocks else ("", 0, 0)
        if length >= 4:
            at += 4 * rng.randrange(length // 4)
            changed[at : at + 4] = (rng.choice(NUMBERS) % 2**32).to_bytes(4, "little")
    return bytes(changed)


def with_checksums(index: ArrayFile, content: bytes, kind: str = "") -> ArrayFile:
    """Return an index of this content, of which only blocks of one kind may have changed."""
    arrays = dict(index.arrays)
    for name in {block[0] for block in _blocks(index, kind)}:
        sums = [xxh3_64_intdigest(content[at : at + length]) for _, at, length in _blocks(index, name)]
        arrays[name.replace("position", "checksum")] = np.array(sums, np.uint64)
    return ArrayFile(arrays, index.document)


# Instead of a file, as only who can write to a folder can: a bucket has nothing like it.


def replace_file(root: Path, victim: Path, rng: random.Random) -> str:
    """Put something else in place of a file or a folder of a cache, and say what."""
    paths = [path for path in sorted((root / "data").rglob("*")) if not path.is_symlink()]
    path = rng.choice(paths)
    what = rng.choice(("pipe", "folder", "link", "device", "loop", "dangling", "empty", "sparse", "victim"))
    is_folder = path.is_dir()
    if is_folder:
        what = rng.choice(("link", "victim", "loop", "pipe", "file"))
    path.rename(root / "moved")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        path.symlink_to(root / "moved")
    elif what == "victim":
        found = [other for other in sorted((victim / "data").rglob("*")) if other.is_dir() == is_folder]
        path.symlink_to(rng.choice(found))
    elif what == "device":
        path.symlink_to(rng.choice(("/dev/zero", "/dev/null", "/dev/random", "/dev/stdin")))
    elif what == "loop":
        path.symlink_to(path)
    elif what == "dangling":
        path.symlink_to(root / "nowhere")
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(rng.choice((2**20, 2**33, 2**40)))
    else:
        path.touch()
    return f"{what} for {path.relative_to(root)}"


# The caches that are forged.


def _odd_record(i: int) -> dict[str, Any]:
    return {
        "when": np.datetime64(1_600_000_000 + i, "s"),
        "spans": np.arange(i, i + 3).astype("m8[25ms]"),
        "small": np.arange(4).astype(ml_dtypes.bfloat16) * i,
        "four": np.arange(3).astype(ml_dtypes.int4),
        "nested": {"list": [np.int8(i % 100), (np.float16(i), {"deep": bool(i % 2)})], 7: np.complex64(i)},
        "point": Point(np.float32(i), np.arange(i % 4, dtype=np.uint16)),
        "none": np.zeros((0, 3), np.float32),
        "days": np.arange(i % 3).astype("M8[D]"),
        "grid": np.full((i % 3, 2, i % 2 + 1), i, np.float16),
    }


def _coded_record(i: int) -> dict[str, Any]:
    words = [f"word {i * k % 17}" for k in range(i % 90)]
    return {
        "text": " ".join(["of a record", *words]),
        "tokens": np.arange(i * 3 % 80, dtype=np.int32),
        "image": np.full((20, 20), i, np.uint8),
        "few": np.int8(i),
        "names": np.array(["none", *words[:5]], object),
    }


def _rows(count: int) -> dict[str, Any]:
    return {
        "label": np.arange(count),
        "image": np.arange(count * 12, dtype=np.uint8).reshape(count, 4, 3),
        "flag": np.arange(count) % 3 == 0,
        "short": np.arange(count, dtype=np.int16),
    }


KINDS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "fixed": lambda: (_rows(300), {"build": yogadl.BuildOptions(part_bytes=3000)}),
    "aligned": lambda: (
        {"row": np.arange(300_000, dtype=np.int32).reshape(-1, 4)},
        {"build": yogadl.BuildOptions(part_bytes=2**20)},
    ),
    "varying": lambda: (map(damage.record, range(120)), {"build": yogadl.BuildOptions(part_bytes=9_000)}),
    "odd": lambda: (map(_odd_record, range(80)), {"build": yogadl.BuildOptions(part_bytes=15_000)}),
    "pickled": lambda: (
        ({"a": {1, i}, "b": i} for i in range(50)),
        {"records": yogadl.RecordOptions(allow_pickle=True)},
    ),
    "single": lambda: ([np.arange(i % 5) for i in range(100)], {}),
}
if importlib.util.find_spec("zstandard"):
    KINDS["coded"] = lambda: (
        map(_coded_record, range(120)),
        {"build": yogadl.BuildOptions(part_bytes=20_000), "codec": "zstd"},
    )


def build(root: Path, kind: str) -> None:
    """Build two versions of one dataset, as `cacheable` does, and a third that is in the trash."""
    storage = yogadl.open_storage(root)
    for version in ("0", "1", "2"):
        data, options = KINDS[kind]()

        def source(factor: int, data: Any = data) -> Any:
            """Make the records."""
            return data if factor else None

        storage.cacheable("data", version, **options)(source)(1 + int(version))
    storage.delete("data", "0")


def copy_cache(base: Path, root: Path) -> None:
    shutil.copytree(base, root, symlinks=True)
