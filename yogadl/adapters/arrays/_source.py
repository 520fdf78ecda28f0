"""Find the source of a table of any supported library."""

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from yogadl._sources.sources import Source
from yogadl.adapters.arrays._batches import StreamSource
from yogadl.adapters.arrays._frames import of_datasets, of_pandas, of_polars, of_pyarrow
from yogadl.adapters.arrays._parquet import of_dataset, of_files
from yogadl.errors import ConfigurationError


def source(data: Any, allow_pickle: bool = False) -> Source | None:  # a table of any library
    """Return the source in `data`, or ``None`` if `data` is no table that this module supports.

    Args:
        data: A table, a file or a stream of pyarrow, a frame of pandas or polars, a dataset of HF datasets.
        allow_pickle: Has no effect: values with an Arrow type need no pickle, others are refused.

    Raises:
        UnsupportedDataError: if a column can't be stored (names the column), or if there are no records.
    """
    packages = [kind.__module__.partition(".")[0] for kind in type(data).__mro__]
    package = next((name for name in packages if name in ("pandas", "polars", "datasets")), None)
    if package == "pandas":
        return of_pandas(data)
    if package == "polars":
        return of_polars(data)
    if package == "datasets":
        return of_datasets(data)
    found = _of_pyarrow(data)
    if found is None and hasattr(data, "__arrow_c_stream__"):
        return StreamSource(pa.RecordBatchReader.from_stream(data))
    return found


def parquet(
    path_or_paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: Sequence[str] | None = None,
) -> Source:
    """Return a source that reads Parquet files one after the other, without ever holding a whole file.

    A few tens of MB are decoded at a time, on a second thread, while the previous data is written. A killed
    build continues at the row group where it stopped; `submit(..., workers=4)` reads in four processes.

    Args:
        path_or_paths: The files, in the order of their records; all files have the same schema.
        columns: The columns to read, in this order; all columns if not given.

    Raises:
        UnsupportedDataError: if a column can't be stored (names the column), or if there are no records.
        ConfigurationError: if a column does not exist, or no path is given.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq, tempfile, yogadl
        >>> from yogadl.adapters import arrays
        >>> folder = tempfile.TemporaryDirectory()
        >>> pq.write_table(pa.table({"x": [1.5, 2.5], "name": ["a", "b"]}), f"{folder.name}/a.parquet")
        >>> storage = yogadl.open_storage(f"{folder.name}/caches")
        >>> storage.submit(arrays.parquet(f"{folder.name}/a.parquet"), "letters", "1")
        >>> storage.fetch("letters", "1")[1]
        {'x': np.float64(2.5), 'name': 'b'}
        >>> folder.cleanup()
    """
    if isinstance(path_or_paths, str | os.PathLike):
        path_or_paths = [path_or_paths]
    paths = [os.fspath(path) for path in path_or_paths]
    if not paths:
        raise ConfigurationError("give the path of at least one Parquet file")
    return of_files(paths, columns)


def _of_pyarrow(data: Any) -> Source | None:
    if isinstance(data, pa.RecordBatchReader):
        return StreamSource(data)
    # Compared by name: these modules of pyarrow are loaded only if there are such objects.
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(data).__mro__}
    if "pyarrow.parquet.core.ParquetFile" in kinds:
        return of_files([data], None)
    if "pyarrow._dataset.Dataset" in kinds:
        return of_dataset(data)
    if "pyarrow._dataset.Scanner" in kinds:
        return StreamSource(data.to_reader())
    return of_pyarrow(data)
