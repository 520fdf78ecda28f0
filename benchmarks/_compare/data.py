"""The data sets on disk: plain .npy files, from which every reader builds its own form. Needs numpy alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Columns = dict[str, Any]


class Strings(Sequence[bytes]):
    """Byte strings of any length: one file of bytes, and where each begins."""

    def __init__(self, folder: Path, name: str) -> None:
        self._bytes = np.load(folder / f"{name}.bytes.npy", mmap_mode="r")
        self._starts = np.load(folder / f"{name}.starts.npy")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:
        return self._bytes[self._starts[index] : self._starts[index + 1]].tobytes()


class Data:
    """One data set.

    Attributes:
        name: As the table calls it.
        records: How many records it has.
        batch: Records in a batch.
        columns: A mapped numpy array for each fixed field, `Strings` for a varying one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        said = json.loads((folder / "set.json").read_text())
        self.name: str = said["name"]
        self.records: int = said["records"]
        self.batch: int = said["batch"]
        self.columns: Columns = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r") if is_fixed else Strings(folder, name)
            for name, is_fixed in said["fields"].items()
        }

    @property
    def fixed(self) -> dict[str, np.ndarray]:
        """The columns of fixed shape."""
        return {name: column for name, column in self.columns.items() if isinstance(column, np.ndarray)}

    @property
    def varying(self) -> str | None:
        """The name of the field of byte strings, if there is one; no set has two."""
        return next((name for name, column in self.columns.items() if isinstance(column, Strings)), None)

    def record(self, index: int) -> dict[str, Any]:
        """Return one record: arrays, numpy numbers and bytes, none of them a view of a file."""
        return {name: _owned(column[index]) for name, column in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.record(index) for index in range(self.records))

    def check(self, batch: Mapping[str, Any]) -> None:
        """Raise ValueError unless each record of a batch is one of the set: all its fields, to the byte."""
        if set(batch) != set(self.columns):
            raise ValueError(f"a batch has the fields {sorted(batch)}, the set has {sorted(self.columns)}")
        for place, index in enumerate(self.ids(batch).tolist()):
            for name, wanted in self.record(index).items():
                found = batch[name][place]
                same = found == wanted if isinstance(wanted, bytes) else np.array_equal(found, wanted)
                if not same or (not isinstance(wanted, bytes) and np.asarray(found).dtype != wanted.dtype):
                    raise ValueError(f"record {index}: field {name!r} of a batch is not what the set has")

    def ids(self, batch: Mapping[str, Any]) -> np.ndarray:
        """Return which record each of a batch is; by its first values where it has no id."""
        if "id" in self.columns:
            return np.asarray(batch["id"])
        heads = _heads(self.columns["tokens"])
        order = np.argsort(heads)
        found = np.searchsorted(heads[order], _heads(batch["tokens"]))
        return order[np.minimum(found, self.records - 1)]


def _heads(rows: Any) -> np.ndarray:
    """Return the first four tokens of each row as one number, which no two rows share."""
    first = np.asarray(rows[:, :4]).astype(np.int64)
    return (first * np.array([1, 1 << 16, 1 << 32, 1 << 47])).sum(axis=1)


def _owned(value: Any) -> Any:
    return value if isinstance(value, bytes) else np.array(value)[()]


def write(name: str, records: int, batch: int, columns: Columns, folder: Path) -> None:
    """Write a set into a new folder."""
    folder.mkdir(parents=True)
    for field, column in columns.items():
        if isinstance(column, np.ndarray):
            np.save(folder / f"{field}.npy", column)
            continue
        np.save(folder / f"{field}.bytes.npy", np.frombuffer(b"".join(column), np.uint8))
        np.save(folder / f"{field}.starts.npy", np.cumsum([0, *map(len, column)]))
    fields = {field: isinstance(column, np.ndarray) for field, column in columns.items()}
    said = {"name": name, "records": records, "batch": batch, "fields": fields}
    (folder / "set.json").write_text(json.dumps(said))
