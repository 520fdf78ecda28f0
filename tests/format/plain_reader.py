"""Read a cache by docs/explanation/format.md alone: json, slices, file reads, zstd; nothing of yogadl."""

import json
import struct
from pathlib import Path

import numpy as np


def read_arrays(path):
    """Open a safetensors file: the arrays by name, and the JSON beside them."""
    content = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    document = json.loads(header.pop("__metadata__")["yogadl"])
    arrays = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = {"I64": "<i8", "U64": "<u8", "U8": "u1"}[entry["dtype"]]
        arrays[name] = np.frombuffer(content[start:end], dtype).reshape(entry["shape"])
    return arrays, document


class PlainCache:
    def __init__(self, root, dataset_id, version):
        self.folder = Path(root, dataset_id)
        self.manifest = json.loads((self.folder / "versions" / f"{version}.json").read_text())
        assert self.manifest["format"] == 1
        assert self.manifest["table"]["container"] == "lmdb-1"
        self.table, _ = read_arrays(self.folder / "tables" / f"{self.manifest['table']['sha256']}.parts")

    def decoded(self, frame, number):
        import zstandard

        dictionary = None
        if number >= 0:
            name = self.table["dictionary.sha256"][number].tobytes().hex()
            dictionary = zstandard.ZstdCompressionDict((self.folder / "parts" / f"{name}.dict").read_bytes())
        return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(frame)

    def record(self, i):
        """Return one record; every leaf is (dtype, shape, bytes), or a list of those for arrays of text."""
        part = int(np.searchsorted(self.table["part.first_record"], i, side="right")) - 1
        row = i - int(self.table["part.first_record"][part])
        with (self.folder / "parts" / f"{self.table['part.sha256'][part].tobytes().hex()}.mdb").open(
            "rb"
        ) as file:
            fields = iter(range(len(self.manifest["codec"])))
            return self.tree(self.manifest["spec"], file, part, row, fields)

    def tree(self, node, file, part, row, fields):
        if "leaf" in node:
            return self.value(node["leaf"]["dtype"], file, part, row, next(fields))
        kind = next(kind for kind in ("dict", "list", "tuple", "namedtuple") if kind in node)
        children = [self.tree(child, file, part, row, fields) for child in node[kind]]
        return dict(zip(node["keys"], children, strict=True)) if kind == "dict" else children

    def value(self, dtype, file, part, row, f):
        table = {
            name.partition(".")[2]: array for name, array in self.table.items() if name.startswith(f"{f}.")
        }
        size, per_block = int(table["row_bytes"][part]), int(table["rows_per_block"][part])
        content = b""
        if size:
            block = int(table["rows_first_block"][part]) + row // per_block
            file.seek(int(table["rows_position"][block]) + row % per_block * size)
            content = file.read(size)
        if not table["varying"][part]:
            rank = int(table["shape"][part][0])
            return dtype, tuple(table["shape"][part][1 : 1 + rank].tolist()), content
        entry = list(struct.unpack(f"<{size // 4}I", content))
        heap = int(table["heap_first_block"][part]) + entry[0]
        file.seek(int(table["heap_position"][heap]) + entry[1])
        content = file.read(entry[2])
        if "codec" in table and table["codec"][part] == 1:
            length = entry.pop(3)
            if length != len(content):
                content = self.decoded(content, int(table["dictionary"][part]))
            assert len(content) == length
        shape = tuple(entry[4 : 4 + entry[3]]) if len(entry) > 3 else ()
        if dtype not in ("bytes", "str") or not shape:
            return dtype, shape, content
        count, items = int(np.prod(shape)), []
        start = 4 * count
        for length in struct.unpack_from(f"<{count}I", content):
            items.append(content[start : start + length])
            start += length
        return dtype, shape, items
