"""Read tables by column: pyarrow, Parquet files, pandas, polars, HF datasets.

Every column of a table is a field of the records; there is no loop over records. `yogadl.open_storage(...)
.submit(table, ...)` finds its way here by itself. What each type of column becomes, and what is refused:
docs/howto/sources.md.
"""

from yogadl.adapters import _checks

_checks.require("pyarrow", "tables are read through Arrow: pip install pyarrow")

from yogadl.adapters.arrays._source import parquet, source

__all__ = ["parquet", "source"]
