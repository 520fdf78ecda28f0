"""What a stranger's cache, in a bucket or a shared folder, can't do to whoever reads it."""

import json
import logging
import os
import pickle
import re
import resource
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import forge
import ml_dtypes
import numpy as np
import pytest
from inside import MOST_EMPTY_RECORDS, AddressRange, ArrayFile, set_constants
from inside import manifest as manifests
from processes import in_fork

import yogadl
from yogadl import cli
from yogadl.errors import CacheFormatError, YogaError
from yogadl.storage import copy

MEMORY_BYTES = 2**30
LIMIT_S = 60
RECORDS = 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Build a cache of fixed and of varying fields, in several parts."""
    root = tmp_path / "root"
    build(root)
    return root


def build(root: Path) -> None:
    yogadl.open_storage(root).submit(
        map(record, range(RECORDS)), "data", "1", build=yogadl.BuildOptions(part_bytes=400)
    )


def record(number: int) -> dict[str, Any]:
    return {"number": number, "raw": b"x" * (number % 70), "row": np.full(3, number, np.int16)}


def forged(root: Path, change: Callable[[forge.Forgery], object]) -> None:
    """Change something of the cache, and all hashes above it."""
    forgery = forge.Forgery.of(root)
    change(forgery)
    forgery.write()


def refusal(call: Callable[..., Any], *args: Any) -> str:
    """Return the message of the error that a call ends with, in a process that may not take a gigabyte."""
    return refusals([(call, *args)])[0]


def refusals(calls: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the messages of several calls, one after the other in one such process."""

    def run() -> list[str]:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if sys.platform == "linux":
            # Beside what earlier tests left: each of their threads has a stack of 8 MB.
            [had_kb] = re.findall(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())
            most_bytes = int(had_kb) * 1024 + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
        messages = []
        for call, *args in calls:
            signal.alarm(LIMIT_S)  # ends a process that waits for a pipe
            try:
                call(*args)
                messages.append("nothing")
            except YogaError as error:
                messages.append(f"{type(error).__name__}: {error}")
        return messages

    messages: list[str] = in_fork(run)
    return messages


def read(root: Path, **options: Any) -> Any:
    ref = yogadl.open_storage(root, **options).fetch("data", "1")
    return ref.gather(range(len(ref)))


def refused(root: Path, match: str) -> None:
    """Check that reading and verifying end with an error that says this."""
    for message in refusals([(read, root), (lambda: yogadl.open_storage(root).verify("data", "1"),)]):
        assert message.startswith("CacheFormatError: ")
        assert match in message


# Part tables.


@pytest.mark.parametrize(
    "sizes",
    [
        [2**63 - 2**16, 2**63 - 2**16, 2**17],  # the sum wraps to 0
        [2**62, 2**62, 2**62, 2**62],
        [2**46, 1],
        [2**63 - 1],
        [-(2**40), 2**41],
    ],
    ids=str,
)
def test_part_sizes_that_wrap_around_map_nothing_over_the_memory_of_the_process(
    root: Path, sizes: list[int]
) -> None:
    def change(forgery: forge.Forgery) -> None:
        found = forgery.table.arrays["part.bytes"].copy()
        found[: len(sizes)] = np.array(sizes)
        forgery.table.arrays["part.bytes"] = found

    forged(root, change)
    document = json.loads((root / "data/versions/1.json").read_text())
    for claimed in (document["bytes"], document["bytes"] % 2**64 % 2**46, 10**6):
        (root / "data/versions/1.json").write_text(json.dumps(document | {"bytes": claimed}))
        refused(root, "damaged")


def test_a_part_outside_of_its_slot_is_not_mapped(root: Path) -> None:
    paths = sorted(map(str, root.rglob("*.mdb")))
    sizes = np.array([os.path.getsize(path) for path in paths])
    for number, offset in ((0, -(2**16)), (1, 0), (len(paths) - 1, 2**40), (1, -(2**62))):
        window = AddressRange(sizes, lambda number: os.open(paths[number], os.O_RDONLY))
        window.offset[number] = offset
        with pytest.raises(CacheFormatError, match="slot"):
            window.map(np.arange(len(paths)))
    for wrong in ([2**62, 2**62, 2**62, 2**62], [-1, 1], [2**63 - 1, 1]):
        with pytest.raises(CacheFormatError, match="sizes"):
            AddressRange(np.array(wrong), lambda number: -1)


def test_a_part_that_is_named_twice_with_two_sizes_is_refused(root: Path) -> None:
    def change(forgery: forge.Forgery) -> None:
        forgery.parts[1] = forgery.parts[0]
        sizes = forgery.table.arrays["part.bytes"].copy()
        sizes[1] = sizes[0] + 4096
        forgery.table.arrays["part.bytes"] = sizes

    forged(root, change)
    refused(root, "contradict")


@pytest.mark.parametrize("name", ["bytes", "parts", "records"])
def test_a_part_table_of_another_size_than_the_manifest_says_is_refused(root: Path, name: str) -> None:
    document = json.loads((root / "data/versions/1.json").read_text())
    document[name] -= 1
    (root / "data/versions/1.json").write_text(json.dumps(document))
    refused(
        root, f"{name if name != 'bytes' else 'bytes in its parts'}, but the manifest says {document[name]}"
    )


def test_a_small_file_whose_records_all_are_the_same_bytes_does_not_fill_the_memory(tmp_path: Path) -> None:
    root = tmp_path / "root"
    large = np.random.default_rng(1).bytes(2**19 * 3 // 2)
    yogadl.open_storage(root).submit([large] + [b"x"] * 2000, "data", "1")
    assert len(read(root)) == 2001

    def change(forgery: forge.Forgery) -> None:
        content, index = forgery.parts[0]
        first = content[index.arrays["0.rows.position"][0] :][:12]
        for at, length in zip(index.arrays["0.rows.position"], index.arrays["0.rows.length"], strict=True):
            content = content[:at] + first * (length // 12) + content[at + length :]
        forgery.parts[0] = content, forge.with_checksums(index, content)

    forged(root, change)
    message = refusal(read, root)
    assert "the same bytes" in message
    ref = yogadl.open_storage(root).fetch("data", "1")
    assert ref[7] == large
    assert ref.gather([7] * 20) == [large] * 20  # asked for by the reader
    assert "the same bytes" in refusal(lambda: list(ref))


@pytest.mark.parametrize("count", [MOST_EMPTY_RECORDS + 1, 2**31, 2**40, 2**62 - 1])
def test_a_small_file_has_no_more_records_without_bytes_than_a_part_may_have(
    tmp_path: Path, count: int
) -> None:
    root = tmp_path / "root"
    yogadl.open_storage(root).submit({"nothing": np.zeros((7, 0))}, "data", "1")

    def change(forgery: forge.Forgery) -> None:
        forgery.table.arrays["part.first_record"] = np.array([0, count])
        forgery.manifest["records"] = count

    forged(root, change)
    refused(root, "contradict")


@pytest.mark.parametrize("more", [-1, 0, 1, MOST_EMPTY_RECORDS + 1])
def test_as_many_records_without_bytes_as_a_part_may_have_and_more_are_written_and_read(
    tmp_path: Path, more: int
) -> None:
    storage = yogadl.open_storage(tmp_path / "root")
    count = MOST_EMPTY_RECORDS + more
    storage.submit({"nothing": np.zeros((count, 0))}, "data", "1")
    assert len(storage.fetch("data", "1")) == count
    assert storage.verify("data", "1").records == count
    assert storage.fetch("data", "1").gather([0, count - 1])["nothing"].shape == (2, 0)


def test_blocks_that_share_their_bytes_are_refused(root: Path) -> None:
    def change(forgery: forge.Forgery) -> None:
        arrays = forgery.table.arrays
        parts, count = len(arrays["part.bytes"]), 3
        arrays["1.heap_first_block"] = np.arange(parts + 1) * count
        arrays["1.heap_length"] = np.repeat(arrays["part.bytes"], count)
        for name in ("position", "first_record", "first_element"):
            arrays[f"1.heap_{name}"] = np.zeros(parts * count, np.int64)

    forged(root, change)
    refused(root, "contradict")


# The names of dtypes, and digests.


@pytest.mark.parametrize(
    "name",
    [
        "datetime64[s/0]",
        "datetime64[s],O",
        "datetime64[0s]",
        "datetime64[s]" + ",i4" * 100_000,
        "timedelta64[s/0]",
        "datetime64[s]\n",
        "datetime64[generic]",
        "datetime64[99999999999999999999s]",
        "datetime64[4294967295s]",
        "bfloat16_",
        "float8_e4m3fn.dtype",
        "float4_" + "x" * 10**6,
        "uint2\0",
    ],
    ids=lambda name: repr(name[:30]),
)
def test_the_name_of_a_dtype_that_numpy_chokes_on_is_refused(root: Path, name: str) -> None:
    forged(root, lambda forgery: forgery.manifest["spec"]["dict"][0]["leaf"].update(dtype=name))
    refused(root, "there is no dtype")


UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")


def test_every_dtype_that_can_be_stored_can_be_read(tmp_path: Path) -> None:
    names = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    names += ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    names += [f"M8[{count}{unit}]" for unit in UNITS for count in ("", "25", "2147483647")]
    names += [f"m8[{unit}]" for unit in UNITS] + ["M8", "m8"]
    dtypes = [np.dtype(name) for name in names]
    known = ("bfloat16", "float8_", "float6_", "float4_", "int4", "uint4", "int2", "uint2")
    dtypes += [np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith(known)]
    record = {dtype.name: np.zeros(3, dtype) for dtype in dtypes} | {"b": b"x", "s": "x"}
    storage = yogadl.open_storage(tmp_path)
    storage.submit([record] * 2, "data", "1")
    found = storage.fetch("data", "1")[1]
    assert len(found) > 70
    assert all(found[dtype.name].dtype == dtype for dtype in dtypes)


def test_a_manifest_of_another_digest_is_not_even_parsed(root: Path) -> None:
    storage = yogadl.open_storage(root)
    digest = storage.info("data", "1").digest
    pinned = pickle.dumps(storage.fetch("data", "1"))
    (root / "data/versions/1.json").write_bytes(b"[" * 10**6)
    with pytest.raises(CacheFormatError, match=digest):
        storage.fetch("data", "1", digest=digest)
    with pytest.raises(YogaError, match=digest):
        pickle.loads(pinned).gather([0])


# What is no file, or somebody else's.


def files_of(root: Path) -> dict[str, Path]:
    found = {suffix[1:]: next(root.rglob(f"*{suffix}")) for suffix in (".mdb", ".idx", ".parts", ".json")}
    return {"part": found["mdb"], "index": found["idx"], "table": found["parts"], "manifest": found["json"]}


def uses(root: Path, kind: str, work: Path) -> dict[str, Callable[[], Any]]:
    """Return what there is to do with a storage."""
    storage = (
        yogadl.open_storage(f"file://{root}", mirror=work / "mirror")
        if kind == "bucket"
        else yogadl.open_storage(root, shared=kind == "shared")
    )
    other = yogadl.open_storage(work / "other")
    return {
        "read": lambda: storage.fetch("data", "1").gather(range(RECORDS)),
        "info": lambda: storage.info("data", "1"),
        "verify": lambda: storage.verify("data", "1"),
        "copy": lambda: copy(storage, other, "data", "1"),
        "prune": lambda: storage.prune(grace_s=0),
        "ls": lambda: cli.main(["ls", "-s", str(root)]),
    }


@pytest.mark.parametrize("storage", ["local", "shared", "bucket"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link"])
def test_what_is_no_file_is_one_clear_error_at_once_instead_of_a_wait_without_end(
    root: Path, kind: str, storage: str, tmp_path: Path
) -> None:
    expected = {
        "part": {"read", "verify", "copy"},
        "index": {"verify", "copy"},
        "table": {"read", "verify", "copy"},
        "manifest": {"read", "verify", "copy", "info"},
    }

    def calls() -> Iterator[tuple[Callable[[], Any]]]:
        for what, path in files_of(root).items():
            path.rename(tmp_path / "moved")
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "socket":
                os.mknod(path, stat.S_IFSOCK | 0o600)
            else:
                path.symlink_to("/dev/zero" if kind == "device" else tmp_path / "moved")
            for call in uses(root, storage, tmp_path / what).values():
                yield (call,)
            path.unlink(missing_ok=True)  # a prune may remove the link, which is no file of the cache
            (tmp_path / "moved").rename(path)

    names = [(what, name) for what in expected for name in uses(root, storage, tmp_path / what)]
    found = dict(zip(names, refusals(calls()), strict=True))
    for what, refused_names in expected.items():
        for name in refused_names:
            assert "CacheFormatError" in found[what, name], (what, name)
    assert len(read(root)["number"]) == RECORDS


@pytest.mark.parametrize("storage", ["local", "shared"])
@pytest.mark.parametrize("folder", ["parts", "tables", "versions", "versions/nested"])
def test_a_folder_of_a_dataset_that_is_a_link_lets_prune_delete_nothing_of_another_storage(
    root: Path, folder: str, storage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = tmp_path / "others"
    yogadl.open_storage(others).submit(
        map(record, range(7)), "data", "nested/2", build=yogadl.BuildOptions(part_bytes=600)
    )
    before = contents(others)
    path = root / "data" / folder
    if path.exists():
        path.rename(tmp_path / "moved")
    path.symlink_to(others / "data" / folder)
    opened = yogadl.open_storage(root, shared=storage == "shared")
    assert opened.prune(grace_s=0).files == ()
    assert "is a link" in caplog.text
    with pytest.raises(CacheFormatError, match="is a link"):
        opened.fetch("data", "nested/2" if folder.startswith("versions") else "1")
    assert contents(others) == before
    if not folder.startswith("versions"):
        with pytest.raises(CacheFormatError, match="is a link"):
            build(root)  # else it would be built where nobody can read it
        assert contents(others) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_linked_part_is_not_read_even_if_its_bytes_are_right(root: Path, tmp_path: Path) -> None:
    ref = yogadl.open_storage(root).fetch("data", "1")
    path = files_of(root)["part"]
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(CacheFormatError, match="is a link"):
        yogadl.open_storage(root).fetch("data", "1")
    with pytest.raises(CacheFormatError, match="a link"):
        ref.gather(range(RECORDS))  # opened before, and mapped just now


def test_a_storage_and_a_dataset_may_be_links_to_another_disk(root: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (root / "data").rename(tmp_path / "disk/data")
    (root / "data").symlink_to(tmp_path / "disk/data")
    (tmp_path / "link").symlink_to(root)
    for shared in (False, True):
        storage = yogadl.open_storage(tmp_path / "link", shared=shared)
        storage.submit([1, 2, 3], "data", "2")
        assert storage.fetch("data", "1")[3]["number"] == 3
        assert storage.fetch("data", "2")[2] == 3
        storage.verify("data", "1")
        assert storage.versions("data") == ["1", "2"]
        before = contents(tmp_path / "disk")
        storage.prune(grace_s=0)
        assert contents(tmp_path / "disk") == before
        storage.delete("data", "2")


@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_in_place_of_a_manifest_is_not_built_over_again_and_again(
    shared: bool, tmp_path: Path
) -> None:
    (tmp_path / "data/versions/1.json").mkdir(parents=True)
    storage = yogadl.open_storage(tmp_path, shared=shared)
    message = refusal(storage.cacheable("data", "1")(source))
    assert message.startswith("StorageError")
    assert str(tmp_path / "data/versions/1.json") in message


def test_the_command_looks_for_a_storage_past_manifests_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "deep/deeper")
    odd = tmp_path / "odd/versions"
    odd.mkdir(parents=True)
    os.mkfifo(odd / "1.json")
    (odd / "2.json").symlink_to("/dev/zero")
    (odd / "3.json").write_bytes(b"[" * 10**6)
    monkeypatch.chdir(tmp_path)
    assert in_fork(cli.main, ["ls"]) == 1  # which says where it found one


# Sizes.


def worst(size_bytes: int) -> bytes:
    """Return JSON that takes forty times its bytes once it is parsed."""
    return b"[" + b'{"":0},' * (size_bytes // 7 - 2) + b"0]"


def test_a_manifest_as_large_as_one_may_be_is_read_in_little_memory_and_a_larger_one_not_at_all(
    root: Path,
) -> None:
    path = root / "data/versions/1.json"
    text = path.read_bytes()
    room = manifests.MAX_MANIFEST_BYTES - len(text) - 2**18
    for most in (b'"' + b"\xf0\x9f\x98\x80" * (room // 4) + b'"', worst(7 * 2**19 - 2**15)):
        path.write_bytes(text.replace(b'"builder": {', b'"builder": {"x": ' + most + b","))
        assert refusal(read, root) == "nothing"
    path.write_bytes(text.replace(b'"builder": {', b'"builder": {"x": ' + worst(15 * 2**24) + b","))
    for call in (read, lambda root: yogadl.open_storage(root).info("data", "1")):
        assert refusal(call, root).startswith("CacheFormatError")
    yogadl.open_storage(root).prune()


@pytest.mark.parametrize("suffix", [".parts", ".idx"])
def test_the_header_of_a_table_or_an_index_is_not_parsed_if_it_is_far_too_long(
    root: Path, suffix: str
) -> None:
    for size_bytes in (2**27, 2**23):
        header = b'{"x":' + worst(size_bytes) + b"}"
        forgery = forge.Forgery.of(root)
        forgery.raw["table" if suffix == ".parts" else "index 0"] = len(header).to_bytes(8, "little") + header
        forgery.write()
        message = refusal(lambda: yogadl.open_storage(root).verify("data", "1"))
        assert message.startswith("CacheFormatError")
        build(root)


def leaves_with(**changes: Any) -> Callable[[Any], Any]:
    return lambda spec: spec | {"dict": [{"leaf": child["leaf"] | changes} for child in spec["dict"]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: {"dict": [{"list": [spec] * 1300}], "keys": ["k" * 10**6]},
        lambda spec: {"namedtuple": spec["dict"], "keys": ["x", "fi", "\ufb01"], "name": "N"},
        leaves_with(ragged_rank=[1]),
        leaves_with(row_splits={}),
    ],
    ids=["names of gigabytes", "two names that are one to Python", "no rank", "no dtype of splits"],
)
def test_a_spec_that_fills_the_memory_or_that_python_chokes_on_is_refused(root: Path, change: Any) -> None:
    def change_spec(forgery: forge.Forgery) -> None:
        forgery.manifest["spec"] = change(forgery.manifest["spec"])
        leaves = json.dumps(forgery.manifest["spec"]).count('"leaf"')
        forgery.manifest["codec"] = ["raw"] * leaves

    forged(root, change_spec)
    assert refusal(read, root).startswith(("CacheFormatError", "UnsupportedDataError"))


# What is said to have built it.


PROVENANCE: dict[str, Any] = {
    "source": [
        1,
        "(" * 10**5,
        "-" * 10**6 + "1",
        "x\0y",
        "\ud800",
        "lambda: " * 400,
        ["x"],
        "x\n" * 10**6,
        "[" * 150,
    ],
    "arguments": [[], "x", {"a": [[[]]] * 10**4, "root": 10**4000}, {"\n\x1b": None}, 7],
    "ingredients": [
        {},
        7,
        "abc",
        [["a", "b"]],
        [[1, 2, 3]],
        [["a", ["b"], {}]],
        [None],
        ["abc"],
        [["\ud800"] * 3],
    ],
    "libraries": [[], 7, "x", {"numpy": [], "a": {}}, {"\ud800": 10**4000}, None],
    "python": [[], {}, "x" * 10**6, 10**4000, None, float("nan")],
    "function": [[], {"a": 1}, 7, "\x1b[2J" * 10**5, "\ud800"],
    "started": [10**4000, [], float("inf"), -1, True],
    "lease_epoch": [[], "x"],
}


def source(root: Any = 1) -> Any:
    """Make the records."""
    return map(record, range(RECORDS))


def asked(root: Path) -> None:
    """Ask for what the builder is needed for."""
    storage = yogadl.open_storage(root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        storage.cacheable("data", "1")(source)(2)
    storage.info("data", "1")
    for versions in (("2", "1"), ("1", "1")):  # and in the other order by the command
        str(storage.explain("data", *versions))
    for words in (["info", "data", "1"], ["info", "data", "1", "--json"], ["explain", "data", "1", "2"]):
        assert cli.main([*words, "-s", str(root)]) == 0


@pytest.mark.parametrize("name", PROVENANCE)
def test_whatever_a_manifest_says_of_its_builder_explains_as_far_as_it_can_be_understood(
    name: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for version in ("1", "2"):
        yogadl.open_storage(root).cacheable("data", version)(source)()
    whole = forge.Forgery.of(root).manifest
    path = root / "data/versions/1.json"

    def ask(builder: dict[str, Any]) -> None:
        path.write_text(json.dumps(whole | {"builder": builder}))
        asked(root)

    builders = [whole["builder"] | {name: value} for value in PROVENANCE[name]]
    builders += [{}, {name: PROVENANCE[name][0]}]
    for builder, message in zip(builders, refusals((ask, builder) for builder in builders), strict=True):
        assert message == "nothing", f"{builder.get(name)!r:.60}"


def test_two_long_sources_are_compared_in_no_time(tmp_path: Path) -> None:
    root = tmp_path / "root"
    lines = [f"x{number % 7}" for number in range(10**5)]
    for version, text in (("1", "\n".join(lines)), ("2", "\n".join(sorted(lines)))):
        yogadl.open_storage(root).cacheable("data", version)(source)()
        path = root / f"data/versions/{version}.json"
        document = json.loads(path.read_text())
        document["builder"]["ingredients"] = [["function f", version, text], ["argument 'a'", version, text]]
        path.write_text(json.dumps(document))
    explanation = yogadl.open_storage(root).explain("data", "1", "2")
    assert [one.what for one in explanation.differences] == ["function f", "argument 'a'"]
    assert len(str(explanation)) < 10_000


def test_a_builder_too_long_for_a_manifest_is_left_out_and_the_cache_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = yogadl.open_storage(tmp_path)
    storage.cacheable("data", "0")(source)("x" * 100)
    size_bytes = (tmp_path / "data/versions/0.json").stat().st_size
    set_constants(monkeypatch, MAX_MANIFEST_BYTES=size_bytes - 100, SMALL_BYTES=100)
    with caplog.at_level(logging.WARNING, "yogadl"):
        storage.cacheable("data", "1")(source)("x" * 100)
    assert "does not say what built it" in caplog.text
    assert storage.fetch("data", "1")[3]["number"] == 3
    assert "numpy" in storage.info("data", "1").builder
    with pytest.raises(YogaError, match="shorten"):
        storage.submit([{"k" * 5000: 1}], "data", "2")


# Indexes.


def forged_documents(whole: dict[str, Any]) -> Iterator[Any]:
    yield from ([], 7, None, {"index": 2}, whole | {"fields": whole["fields"][:2]})
    for name in ("bytes", "records", "hash", "fields", "index"):
        for value in (None, "1", -1, 1.5, 10**4000, 2**62, [], {}, [None]):
            yield whole | {name: value}
    for name in ("stored", "shape", "row_bytes", "rows_per_block", "elements"):
        for value in (None, "x", -1, 1.5, 2**63, [-1], [1] * 40, ["x"], 10**4000):
            yield whole | {"fields": [whole["fields"][0] | {name: value}, *whole["fields"][1:]]}


def test_a_forged_index_is_an_error_of_verify_that_names_its_records(root: Path) -> None:
    whole = forge.Forgery.of(root)
    content, index = whole.parts[0]
    for document in forged_documents(index.document):
        whole.parts[0] = content, ArrayFile(index.arrays, document)
        whole.write()
        with pytest.raises(CacheFormatError, match=r"records 0 to|manifest does not match"):
            yogadl.open_storage(root).verify("data", "1")
    whole.parts[0] = content, index
    whole.write()
    yogadl.open_storage(root).verify("data", "1")
