"""Write records to files that other programs read: .npy, Parquet, Arrow."""

import errno
import importlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from yogadl._core.columns import size_of
from yogadl._core.protocols import Column
from yogadl._core.spec import OBJECT, Leaf, Spec
from yogadl._dataref import RecordsRef
from yogadl.errors import ConfigurationError, UnsupportedDataError
from yogadl.storage._files.folder import storage_error, sync_folder

# The modules in `yogadl.adapters`, imported by name at the first use: imports run downward only.
_ADAPTERS: Final = {"parquet": "arrow_export", "arrow": "arrow_export"}
NPY: Final = "npy"
FORMATS: Final = (NPY, *_ADAPTERS)

_CHUNK_BYTES: Final = 32 * 2**20
_MAX_NAME: Final = 100


class Writer(Protocol):
    """Write the records of one dataset into a folder, in order."""

    def write(self, columns: Sequence[Column], first_record: int) -> None:
        """Write the records that follow, a column for each field.

        Raises:
            UnsupportedDataError: if a value has no form in this format; the error names field and record.
        """

    def close(self) -> None:
        """Finish the files. Called once, also after an error."""


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Args:
        folder: The folder that was written.
        files: The names of the files in it.
        records: The number of records in them.
        size_bytes: The size of all of them.
    """

    folder: Path
    files: tuple[str, ...]
    records: int
    size_bytes: int


def export(
    ref: RecordsRef,
    folder: str | os.PathLike[str],
    format: str = NPY,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write records to files that other programs read, all or none: the folder appears at the end.

    ``"npy"`` writes a ``.npy`` file for each field, which must not vary in length, and a ``spec.json`` that
    lists them. ``"parquet"`` and ``"arrow"`` (the IPC file format) write one file, a column for each field;
    they need pyarrow. The form of each kind of field: docs/howto/export.md. An export uses some tens of MB of
    memory, however large the dataset.

    Args:
        ref: The records: a dataset, or some of it (``ref[:1000]``, ``ref.fields("image")``).
        folder: The folder to write to: a new one, or an empty one.
        format: ``"npy"``, ``"parquet"`` or ``"arrow"``.
        progress: Called with records written and records in all.

    Raises:
        ConfigurationError: if the format is unknown, or the folder is not empty.
        UnsupportedDataError: if a field has no form in that format; the error names the field and a remedy.
        MissingDependencyError: if the format needs pyarrow, and it is not installed.
        StorageError: if the disk fails or is full.

    Example:
        >>> import numpy as np, tempfile, yogadl
        >>> folder = tempfile.TemporaryDirectory()
        >>> storage = yogadl.open_storage(f"{folder.name}/caches")
        >>> ref = storage.submit({"x": np.arange(6).reshape(3, 2), "y": np.ones(3)}, "points", "1")
        >>> exported = yogadl.storage.export(storage.fetch("points", "1"), f"{folder.name}/points")
        >>> exported.files
        ('spec.json', 'x.npy', 'y.npy')
        >>> np.load(exported.folder / "x.npy")
        array([[0, 1],
               [2, 3],
               [4, 5]])
        >>> folder.cleanup()
    """
    if format not in FORMATS:
        raise ConfigurationError(
            f"there is no format {format!r} to export to; there are {', '.join(FORMATS)}"
        )
    target = Path(folder).expanduser().absolute()
    _refuse_nonempty(target)
    _refuse_pickled(ref.spec)
    work = target.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        work.mkdir(parents=True)
        try:
            _write_all(_open_writer(format, work, ref), ref, progress)
            files = _sync(work)
            work.replace(target)  # replaces an empty folder, too
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        sync_folder(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise ConfigurationError(f"{target} is not empty any more; give a new folder") from error
        raise storage_error(error, f"can't export to {target}") from error
    return Exported(target, tuple(files), len(ref), sum(files.values()))


def _refuse_nonempty(target: Path) -> None:
    try:
        if any(target.iterdir()):
            raise ConfigurationError(f"{target} is not empty; give a new folder, or empty it first")
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise ConfigurationError(f"{target} is a file, or inside a file; give a folder") from error
    except OSError as error:
        raise storage_error(error, f"can't export to {target}") from error


def _refuse_pickled(spec: Spec) -> None:
    pickled = [field.name for field in spec.fields if field.leaf.dtype == OBJECT]
    if pickled:
        raise UnsupportedDataError(
            f"the fields {pickled} are pickled objects, which no other program reads; {_LEAVE_OUT}"
        )


_LEAVE_OUT: Final = "export only the other fields: ref.fields(...) selects them"


def _open_writer(format: str, work: Path, ref: RecordsRef) -> Writer:
    if format == NPY:
        return NpyWriter(work, ref)
    adapter = importlib.import_module(f"yogadl.adapters.{_ADAPTERS[format]}")
    writer: Writer = adapter.ArrowWriter(work, format, ref.spec, ref.fingerprint, ref.metadata)
    return writer


def _write_all(writer: Writer, ref: RecordsRef, progress: Callable[[int, int], None] | None) -> None:
    first, record_bytes = 0, ref.record_bytes
    try:
        while first < len(ref):
            end = min(len(ref), first + max(1, _CHUNK_BYTES // max(1, record_bytes)))
            columns = ref.columns(np.arange(first, end, dtype=np.int64))
            writer.write(columns, first)
            # The next chunk may have larger records than the average.
            record_bytes = max(ref.record_bytes, sum(map(size_of, columns)) // (end - first))
            first = end
            if progress is not None:
                progress(first, len(ref))
    finally:
        writer.close()


def _sync(folder: Path) -> dict[str, int]:
    """Make the files in a folder durable; return their sizes by name."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            sizes[path.name] = os.fstat(file.fileno()).st_size
    sync_folder(folder)
    return sizes


class NpyWriter:
    """Write a ``.npy`` file for each field.

    Files are written, not mapped: on a full disk, writing to a mapped file kills the process.

    Raises:
        UnsupportedDataError: if a field varies in length; the error names it.
    """

    def __init__(self, folder: Path, ref: RecordsRef) -> None:
        varying = [field.name for field in ref.spec.fields if not field.leaf.is_fixed]
        if varying:
            what = f"the fields {varying} vary in length" if varying != [""] else "the records vary in length"
            raise UnsupportedDataError(
                f"{what}, and a .npy file is one array: export to 'parquet' or 'arrow', or {_LEAVE_OUT}"
            )
        names = file_names([field.name for field in ref.spec.fields])
        self._paths = [folder / f"{name}.npy" for name in names]
        dtypes = [stored_dtype(field.leaf) for field in ref.spec.fields]
        fields = []
        for field, path, dtype in zip(ref.spec.fields, self._paths, dtypes, strict=True):
            shape = (len(ref), *(field.leaf.shape or ()))
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": shape,
            }
            with path.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
            fields.append({"name": field.name, "file": path.name, "dtype": field.leaf.dtype})
            if dtype != field.leaf.numpy_dtype:
                fields[-1]["stored"] = f"the bits, as {dtype.name}"
        document = {
            "records": len(ref),
            "fields": fields,
            "spec": ref.spec.to_json(),
            "fingerprint": ref.fingerprint,
            "metadata": ref.metadata,
        }
        (folder / "spec.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")

    def write(self, columns: Sequence[Column], first_record: int) -> None:
        """Append to every file; no file is kept open, since there may be thousands."""
        for path, column in zip(self._paths, columns, strict=True):
            # As bytes, since datetimes have no buffer. Any: mypy has no array type with one.
            content: Any = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
            with path.open("ab") as file:
                file.write(content)

    def close(self) -> None:
        """Do nothing: no file is open."""


def stored_dtype(leaf: Leaf) -> "np.dtype[Any]":
    """Return the dtype of numpy that stores a field: unsigned integers for dtypes of ml_dtypes."""
    dtype = leaf.numpy_dtype
    return dtype if dtype.type.__module__ == "numpy" else np.dtype(f"<u{dtype.itemsize}")


def file_names(names: Sequence[str]) -> list[str]:
    """Return a file name without suffix for each field, unique on any file system."""
    result: list[str] = []
    used_names = {"spec"}
    for name in names:
        safe = "".join(c if c.isalnum() or c in "_-." else "_" for c in name.replace("/", "."))
        base = name_on_disk = (
            safe.lstrip(".").encode("utf-8", "replace")[:_MAX_NAME].decode("utf-8", "ignore") or "records"
        )
        number = 1
        while name_on_disk.lower() in used_names:  # some file systems do not distinguish a and A
            number += 1
            name_on_disk = f"{base}-{number}"
        used_names.add(name_on_disk.lower())
        result.append(name_on_disk)
    return result
