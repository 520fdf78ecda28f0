"""A manifest that is cut short, newer, of another dataset or forged is refused, and never does any harm."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import damage
import pytest
from processes import in_child

import yogadl
from yogadl.errors import CacheFormatError, DatasetNotFoundError, YogaError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    damage.build(tmp_path)
    return tmp_path


def document_of(root: Path) -> dict[str, Any]:
    return json.loads(damage.manifest_of(root).read_bytes())


def put(root: Path, document: Any) -> None:
    damage.manifest_of(root).write_text(json.dumps(document))


def refused(root: Path) -> str:
    """Check that neither reading nor anything else gets past the manifest; return the message."""
    storage = yogadl.open_storage(root)
    for call in (storage.fetch, storage.info, storage.verify):
        with pytest.raises(CacheFormatError) as caught:
            call("data", "1")
    assert storage.versions("data") == ["1"]
    return str(caught.value)


def test_a_manifest_cut_short_at_any_length_is_refused(root: Path) -> None:
    path = damage.manifest_of(root)
    content = path.read_bytes()
    storage = yogadl.open_storage(root)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CacheFormatError, match=r"1\.json"):
            storage.fetch("data", "1")
    path.write_bytes(content)
    storage.verify("data", "1")


def test_a_manifest_of_a_terabyte_is_refused_before_it_is_read(root: Path) -> None:
    with damage.manifest_of(root).open("r+b") as file:
        file.truncate(2**40)  # sparse: it takes no room
    with pytest.raises(YogaError, match="bytes"):
        yogadl.open_storage(root).fetch("data", "1")


def test_a_damaged_manifest_can_be_replaced_or_deleted(root: Path) -> None:
    storage = yogadl.open_storage(root)
    damage.manifest_of(root).write_bytes(b"{")
    damage.build(root)
    storage.verify("data", "1")
    damage.manifest_of(root).write_bytes(b"")
    assert storage.prune(grace_s=0).files == ()  # nobody knows what it names
    storage.delete("data", "1")
    with pytest.raises(DatasetNotFoundError):
        storage.fetch("data", "1")
    damage.build(root)
    storage.verify("data", "1")


def test_a_damaged_manifest_is_not_built_over_by_a_cacheable(root: Path) -> None:
    damage.manifest_of(root).write_bytes(b"{}")
    with pytest.raises(CacheFormatError):
        yogadl.open_storage(root).cacheable("data", "1")(damage.records)()


@pytest.mark.parametrize(
    "spec", ["{}", '{"leaf": {"dtype": "int65", "shape": []}}', '{"leaf": {"dtype": "int64", "shape": [-1]}}']
)
def test_what_is_damaged_in_a_record_s_structure_is_told_with_the_file(root: Path, spec: str) -> None:
    manifest = damage.manifest_of(root)
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(document | {"spec": json.loads(spec)}))
    with pytest.raises(CacheFormatError, match=r"manifest \S*1\.json is damaged: .*; build the dataset"):
        yogadl.open_storage(root).fetch("data", "1")


@pytest.mark.parametrize("version", [0, 2, 10**30, -1])
def test_a_manifest_of_another_format_is_refused_by_its_number(root: Path, version: int) -> None:
    put(root, document_of(root) | {"format": version})
    message = refused(root)
    assert f"format {version}" in message
    assert "upgrade yogadl" in message


@pytest.mark.parametrize(
    "change",
    [
        {"needs": ["quantum"]},
        {"needs": ["pickle", "quantum"]},
        {"codec": ["raw"] * 6 + ["quantum"]},
        {"table": {"container": "quantum"}},
    ],
)
def test_what_this_library_does_not_know_is_refused_by_name(root: Path, change: dict[str, Any]) -> None:
    document = document_of(root)
    if "table" in change:
        change = {"table": document["table"] | change["table"]}
    put(root, document | change)
    message = refused(root)
    assert "'quantum'" in message
    assert "upgrade yogadl" in message


def test_the_manifest_of_another_dataset_or_version_is_refused(root: Path) -> None:
    damage.build(root, "other")
    path = damage.manifest_of(root)
    path.write_bytes((root / "other" / "versions" / "1.json").read_bytes())
    assert "'other' version '1'" in refused(root)
    damage.build(root)
    (path.parent / "2.json").write_bytes(path.read_bytes())
    with pytest.raises(CacheFormatError, match="copied or renamed"):
        yogadl.open_storage(root).fetch("data", "2")


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        "a" * 63,
        "A" * 64,
        "a" * 64 + "\n",
        "..",
        "",
        "a" * 63 + "/",
        "\0" * 64,
    ],
)
def test_a_name_in_a_manifest_that_is_no_hash_never_becomes_a_path(root: Path, name: str) -> None:
    document = document_of(root)
    put(root, document | {"table": document["table"] | {"sha256": name}})
    assert "damaged" in refused(root)


@pytest.mark.parametrize(
    "content",
    [
        b"not JSON",
        b"\0" * 1000,
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"7",
        b'"format"',
        b"{}",
        b'{"format": true}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 10_000,
        b'{"format": NaN}',
        '{"format": 1}'.encode("utf-16"),
    ],
    ids=lambda content: repr(content)[:30],
)
def test_what_is_no_manifest_at_all_is_refused(root: Path, content: bytes) -> None:
    damage.manifest_of(root).write_bytes(content)
    refused(root)


@pytest.mark.parametrize("depth", [70, 200, 400, 5000])
def test_a_deeply_nested_spec_is_refused(root: Path, depth: int) -> None:
    text = json.dumps(document_of(root) | {"spec": "SPEC"})
    deep = '{"list":[' * depth + '{"leaf":{"dtype":"int64","shape":[]}}' + "]}" * depth
    damage.manifest_of(root).write_text(text.replace('"SPEC"', deep))
    refused(root)


def leaf(**changes: Any) -> dict[str, Any]:
    return {"leaf": {"dtype": "int64", "shape": []} | changes}


@pytest.mark.parametrize(
    "spec",
    [
        leaf(dtype="object_"),
        leaf(dtype="O"),
        leaf(dtype="int64,int64"),
        leaf(dtype="datetime64[quantum]"),
        leaf(dtype="datetime64[99999999999999999999s]"),
        leaf(dtype="datetime64[" + "[" * 100),
        leaf(dtype="float8_quantum"),
        leaf(dtype="int4.__class__"),
        leaf(dtype=["int64"]),
        leaf(dtype=None),
        leaf(shape=[-1]),
        leaf(shape=[1.5]),
        leaf(shape=["1"]),
        leaf(shape=[True]),
        leaf(shape="11"),
        leaf(shape=[1] * 100),
        leaf(shape=[2**40, 2**40]),
        leaf(shape=[2**100]),
        {"dict": [leaf(), leaf()], "keys": ["a", "a"]},
        {"dict": [leaf()], "keys": [["a"]]},
        {"dict": [leaf()], "keys": [1.5]},
        {"dict": [leaf()], "keys": ["a", "b"]},
        {"namedtuple": [leaf()], "keys": ["a b"], "name": "N"},
        {"namedtuple": [leaf()], "keys": ["a"], "name": "class"},
        {"namedtuple": [leaf(), leaf()], "keys": ["a", "a"], "name": "N"},
        {"namedtuple": [leaf()], "keys": ["a"], "name": "__import__('os')"},
        {"list": "leaf"},
        {"list": [leaf()] * 5000},
        {"set": [leaf()]},
        [],
        None,
    ],
    ids=lambda spec: json.dumps(spec)[:60],
)
def test_a_spec_that_makes_no_sense_is_refused(root: Path, spec: Any) -> None:
    put(root, document_of(root) | {"spec": spec, "codec": ["raw"]})
    with pytest.raises(CacheFormatError, match=r"damaged: .*(dtype|shape|description|record|keys|names)"):
        yogadl.open_storage(root).fetch("data", "1")


ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    1.5,
    2**31,
    2**63,
    10**40,
    "",
    "x",
    "raw",
    "int64",
    "bytes",
    [],
    {},
    [1],
    ["raw"],
    {"a": 1},
    [[]],
    float("nan"),
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [found for key, item in items for found in paths_of(item, (*path, key))]


def replace_values(root: Path) -> dict[str, int]:
    """Put some odd values in place of every value of the manifest in turn, and take it out."""
    damage.limit_memory()
    document = document_of(root)
    content = damage.manifest_of(root).read_bytes()
    found = {"read": 0, "verify": 0, "harmless": 0}
    rng = random.Random(6)
    for path in paths_of(document):
        for odd in (*rng.sample(ODD_VALUES, len(ODD_VALUES) // 2), ...):
            changed: Any = copy.deepcopy(document)
            place = {"": changed}
            for key in ("", *path)[:-1]:
                place = place[key]
            last = ("", *path)[-1]
            if odd is ...:
                del place[last]
            else:
                place[last] = odd
            put(root, changed.get("") if not path and isinstance(changed, dict) else changed)
            try:
                found[check(root)] += 1
            except BaseException as error:
                error.add_note(f"{path}: {odd!r}")
                raise
    damage.manifest_of(root).write_bytes(content)
    assert check(root) == "harmless"
    return found


def check(root: Path) -> str:
    """Open, read and verify a cache: only errors of ours, and what reads and verifies is right."""
    found = damage.read_all(root)
    error = damage.verify(root)
    if isinstance(found, YogaError):
        return "read"
    if isinstance(error, CacheFormatError):
        return "verify"
    assert damage.is_right(found)
    return "harmless"


def test_any_value_of_a_manifest_in_place_of_any_other_is_refused_found_by_verify_or_harmless(
    root: Path,
) -> None:
    found = in_child(replace_values, root)
    assert found["read"] > 500
    assert found["verify"] > 10


def test_a_digest_pins_every_byte_of_the_manifest(root: Path) -> None:
    storage = yogadl.open_storage(root)
    digest = storage.info("data", "1").digest
    storage.fetch("data", "1", digest=digest)
    put(root, document_of(root) | {"token": "another"})
    storage.verify("data", "1")
    with pytest.raises(CacheFormatError, match=digest):
        storage.fetch("data", "1", digest=digest)
