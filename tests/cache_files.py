"""Find the files of a cache on the disk: which index belongs to which part."""

from pathlib import Path

from inside import ArrayFile, PartIndex, PartTable


def read_table(path: Path) -> PartTable:
    return PartTable.from_file(ArrayFile.from_buffer(path.read_bytes(), str(path)), str(path))


def read_index(path: Path) -> PartIndex:
    return PartIndex.from_file(ArrayFile.from_buffer(path.read_bytes(), str(path)), str(path))


def parts_and_indexes(dataset: Path) -> list[tuple[Path, Path]]:
    """Return the files of each part of a dataset's folder, as its part tables pair them."""
    names = {
        pair
        for path in (dataset / "tables").glob("*.parts")
        for pair in zip(read_table(path).sha256, read_table(path).index_sha256, strict=True)
    }
    return [
        (dataset / "parts" / f"{part}.mdb", dataset / "parts" / f"{index}.idx")
        for part, index in sorted(names)
    ]
