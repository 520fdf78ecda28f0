"""What tests do to the files of a storage."""

from pathlib import Path

from cache_files import parts_and_indexes, read_index


def damage_part(root, dataset_id):
    """Flip a bit of the first value in the only part of a dataset, and return the part's name."""
    ((part, index),) = parts_and_indexes(root / dataset_id)
    content = bytearray(part.read_bytes())
    content[int(read_index(index).fields[0].rows.position[0])] ^= 1
    part.write_bytes(content)
    return part.name


def tree_of(root):
    """Return every file below a folder, with its size and time."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)
