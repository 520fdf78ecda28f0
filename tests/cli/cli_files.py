"""What tests do to the files of a storage."""

from yogadl._format.arrays import ArrayFile
from yogadl._format.layout import PartIndex


def damage_part(root, dataset_id):
    """Flip a bit of the first value in the only part of a dataset, and return the part's name."""
    (index,) = (root / dataset_id / "parts").glob("*.idx")
    found = PartIndex.from_file(ArrayFile.from_buffer(index.read_bytes(), ""), "")
    part = index.with_suffix(".mdb")
    content = bytearray(part.read_bytes())
    content[int(found.fields[0].rows.position[0])] ^= 1
    part.write_bytes(content)
    return part.name


def tree_of(root):
    """Return every file below a folder, with its size and time."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}
