"""Read tables by column: pyarrow, Parquet files, pandas, polars, HF datasets.

Every column of a table is a field of the records; there is no loop over records. `yogadl.open_storage(...)
.submit(table, ...)` uses this adapter by itself. docs/howto/sources.md lists the dtype of each type of
column, and the types that are refused.
"""

from yogadl.adapters import _checks

_checks.require("pyarrow", "tables are read through Arrow: pip install pyarrow")

from yogadl.adapters.arrays._source import parquet, source

__all__ = ["parquet", "source"]
