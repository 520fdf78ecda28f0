"""The same records in caches of every kind, and records without a cache."""

import json
import struct
from importlib.util import find_spec

import numpy as np
from adopted_files import write
from algebra import Made, plain
from trees import JSON_VALUES

import yogadl
from yogadl import Leaf

COUNT = 23
NAMES = ("id", "pair", "tokens", "text")
SPEC = {"tokens": Leaf("int32", (None,))}


def record(n, least=0):
    """Return a record; some have few tokens, and some have many."""
    return {
        "id": n,
        "pair": np.array([n, n % 3], np.float32),
        "tokens": np.arange(n * 7 % 11 if n % 5 else least, dtype=np.int32) + 100 * n,
        "text": "é" * (n % 4),
    }


RECORDS = [record(n) for n in range(COUNT)]
# Other values of the same lengths, to which the functions of `algebra` do the same.
RELABELLED = [each | {name: each[name] + 12 for name in ("pair", "tokens")} for each in RECORDS]
OLDER = 8  # records of the version before the last that "grown" begins with
FULL = [record(n, 1) for n in range(0, 3 * COUNT, 3) if n % 11]  # MDS has no arrays without values

# A slice of these that is an earlier version has the fingerprint of that version.
CONTINUED = ("grown", "compacted", "first of a later version")
EARLIER = ("older", "first of a version")
FIRSTS = (
    [0] * 7 + [7] * (OLDER - 7) + [OLDER] * (COUNT - OLDER)
)  # where the version that added each record begins


def mds_of(records):
    """Return a shard of MosaicML Streaming."""
    columns = {"id": "int", "pair": "ndarray:float32:2", "tokens": "ndarray:int32", "text": "str"}
    config = {
        "column_names": list(columns), "column_encodings": list(columns.values()),
        "column_sizes": [8, 8, None, None], "compression": None, "format": "mds", "hashes": [],
        "size_limit": 2**26, "version": 2,
    }  # fmt: skip
    shown = json.dumps(config).encode()
    bodies = []
    for each in records:
        tokens = bytes([1 << 2 | 2]) + struct.pack("<I", len(each["tokens"])) + each["tokens"].tobytes()
        text = each["text"].encode()
        bodies.append(
            struct.pack("<IIq", len(tokens), len(text), each["id"]) + each["pair"].tobytes() + tokens + text
        )
    offsets = np.cumsum([4 * (len(bodies) + 2) + len(shown), *map(len, bodies)]).astype("<u4")
    return struct.pack("<I", len(bodies)) + offsets.tobytes() + shown + b"".join(bodies)


def made_of(name, ref, records, names=NAMES, kind="document"):
    """Return a base; its rows say each number as a cache stores it."""
    rows = [plain(stored(each)) for each in records]
    firsts = FIRSTS[: len(rows)] if name in (*CONTINUED, *EARLIER) else [0] * len(rows)
    return Made(ref, rows, kind, tuple(names), name, {}, has_exact_plan=name == "ranged", firsts=firsts)


def stored(value):
    if isinstance(value, dict) and "id" in value:
        return value | {"id": np.int64(value["id"])}
    return value


def caches(folder):
    """Return references to caches of the records above, all with one fingerprint."""
    storage = yogadl.open_storage(folder / "bucket")
    found = {"local": storage.submit(RECORDS, "d", "1", build=yogadl.BuildOptions(part_bytes=600))}
    url = (folder / "bucket").as_uri()
    found["ranged"] = yogadl.open_storage(url, mirror=None).fetch("d", "1")
    found["mirrored"] = yogadl.open_storage(url, mirror=folder / "mirror").fetch("d", "1")
    yogadl.open_storage(url, mirror=folder / "part").fetch("d", "1")
    for part in sorted((folder / "part").rglob("*.mdb"))[::2]:
        part.unlink()
    partly = yogadl.open_storage(url, mirror=yogadl.Mirror(folder / "part", fill="never"))
    found["mirrored in part"] = partly.fetch("d", "1")
    found["unmapped"] = yogadl.open_storage(folder / "bucket", mapped=False).fetch("d", "1")
    shared = yogadl.open_storage(folder / "shared", shared=True)
    found["shared"] = shared.submit(storage.fetch("d", "1"), "copy", "1")
    grown = yogadl.open_storage(folder / "grown")
    grown.submit(RECORDS[:7], "d", "1")
    grown.append(RECORDS[7:OLDER], "d", "2", base_version="1")
    found["grown"] = grown.append(RECORDS[OLDER:], "d", "3", base_version="2")
    found["compacted"] = grown.compact("d", "3", "4")
    later = grown.append([record(n) for n in (90, 91)], "d", "5", base_version="3")
    found["first of a later version"] = later[:COUNT]
    if find_spec("zstandard"):
        compressed = yogadl.open_storage(folder / "compressed")
        codec = {"tokens": yogadl.Zstd(), "text": yogadl.Zstd()}
        found["compressed"] = compressed.submit(RECORDS, "d", "1", codec=codec)
    return found


def adopted(folder):
    """Return references to the full records, with one fingerprint; and one to foreign files not read."""
    storage = yogadl.open_storage(folder / "adopted")
    (folder / "mds").mkdir()
    for n, part in enumerate((FULL[:9], FULL[9:])):
        (folder / "mds" / f"shard.{n:05}.mds").write_bytes(mds_of(part))
    found = {"adopted": storage.adopt(folder / "mds", "d", "1")}
    found["copied"] = storage.compact("d", "1", "2", materialize=True)
    found["submitted"] = storage.submit(FULL, "d", "3")
    return found, storage.adopt(folder / "mds", "unread", "1", files=yogadl.FileOptions(read=False))


def parquet(folder):
    """Return a reference to the records in row groups of Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({
        "id": pa.int64(), "pair": pa.list_(pa.float32(), 2), "tokens": pa.list_(pa.int32()),
        "text": pa.string(),
    })  # fmt: skip
    (folder / "parquet").mkdir()
    for n, part in enumerate((RECORDS[:9], RECORDS[9:10], RECORDS[10:])):
        rows = [{name: np.asarray(value).tolist() for name, value in each.items()} for each in part]
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"parquet/{n}.parquet", row_group_size=4)
    return yogadl.open_storage(folder / "of parquet").adopt(folder / "parquet", "d", "1")


def bases(folder):
    """Return every base by name, and tuples of those of which the same views have one fingerprint.

    Besides: an earlier version of "grown", the records of "grown" that are its, and "relabelled".
    """
    one, (other, unread) = caches(folder), adopted(folder)
    found = {name: made_of(name, ref, RECORDS) for name, ref in one.items()}
    found |= {name: made_of(name, ref, FULL) for name, ref in other.items()}
    found["adopted unread"] = made_of("adopted unread", unread, FULL)
    found["list"] = made_of("list", yogadl.from_source(RECORDS, spec=SPEC), RECORDS)
    notes = [each | {"notes": JSON_VALUES[n % len(JSON_VALUES)]} for n, each in enumerate(RECORDS)]
    storage = yogadl.open_storage(folder / "json")
    with_notes = storage.submit(notes, "d", "1", json=["notes"], build=yogadl.BuildOptions(part_bytes=900))
    found["json"] = made_of("json", with_notes, notes, (*NAMES, "notes"))
    for form, kind in (("jsonl", "json"), ("megatron", "array")):
        found[form] = of_values(storage, folder, form, kind)
    older = yogadl.open_storage(folder / "grown").fetch("d", "2")
    found["older"] = made_of("older", older, RECORDS[:OLDER])
    found["first of a version"] = made_of("first of a version", one["grown"][:OLDER], RECORDS[:OLDER])
    relabelled = yogadl.open_storage(folder / "relabelled").submit(RELABELLED, "d", "1")
    found["relabelled"] = made_of("relabelled", relabelled, RELABELLED)
    if find_spec("pyarrow"):
        found["parquet"] = made_of("parquet", parquet(folder), RECORDS)
    for base in found.values():
        base.bases.update(found)
    plain_ones = tuple(name for name in one if name not in CONTINUED)
    return found, (plain_ones, CONTINUED, tuple(other))


def of_values(storage, folder, form, kind):
    """Return a base whose records are single values."""
    if form == "jsonl":
        records = [{"n": n, "more": JSON_VALUES[n % len(JSON_VALUES)]} for n in range(COUNT)]
        path = folder / "lines.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
        return made_of(form, storage.adopt(path, form, "1", parse=True), records, (), kind)
    records = [each["tokens"] for each in FULL]
    path = write(folder / "tokens.bin", form, records)
    return made_of(
        form, storage.adopt(path, form, "1", files=yogadl.FileOptions(read=False)), records, (), kind
    )
