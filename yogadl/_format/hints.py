"""Tell the kernel which rows will be read soon, unless they are in memory already.

A page that is not in the page cache is read when it is touched, one at a time, with its neighbours that a
shuffled epoch does not want. Told beforehand, the kernel reads just what is wanted, much of it at once
(benchmarks/prefetch.py).
"""

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._format.fields import FixedField, VaryingField
from yogadl._format.rows import StoredRows

Int64s = NDArray[np.int64]

# Rows smaller than this share their pages with many others that the epoch wants, too.
_LEAST_BYTES: Final = 1024
_SAMPLED_ROWS: Final = 32
# Found in memory, a cache is not looked at again for so many records; and nothing need be said of so many.
_TRUSTED_RECORDS: Final = 1 << 17
_SPARED_RECORDS: Final = 1 << 14


class Hints:
    """Give hints for one cache. Safe to use from several threads: at worst a hint is given twice."""

    def __init__(self, fields: Sequence[FixedField | VaryingField]) -> None:
        self._fields = fields
        self._trusted = 0

    def give(self, rows: StoredRows) -> int:
        """Let the kernel read what these rows need, if it is not in memory; return how many need no hint."""
        if self._trusted > 0:
            self._trusted -= len(rows.indices) + _SPARED_RECORDS
            return _SPARED_RECORDS
        spans = [span for field in self._fields if (span := field.span(rows, _LEAST_BYTES)) is not None]
        starts = np.concatenate([span[0] for span in spans]) if spans else np.empty(0, np.int64)
        if not len(starts) or self._are_resident(rows, starts):
            self._trusted = _TRUSTED_RECORDS
            return 0
        ends = starts + np.concatenate([span[1] for span in spans])
        order = np.argsort(starts)
        rows.window.will_need(starts[order], ends[order])
        return 0

    def _are_resident(self, rows: StoredRows, starts: Int64s) -> bool:
        """Return whether a sample of positions in the window is in memory.

        Reading without waiting tells; mincore would not for files of others, which it calls resident always.
        """
        flag: Any = getattr(os, "RWF_NOWAIT", None)
        if flag is None:
            return True  # not Linux: no hints
        sample = starts[np.linspace(0, len(starts) - 1, min(_SAMPLED_ROWS, len(starts))).astype(np.int64)]
        parts = np.searchsorted(rows.window.offset, sample, side="right") - 1
        buffer = bytearray(1)
        for part, start in zip(parts.tolist(), sample.tolist(), strict=True):
            descriptor = rows.parts.open(part)
            try:
                os.preadv(descriptor, [buffer], start - int(rows.window.offset[part]), flag)
            except BlockingIOError:
                return False
            except OSError:
                return True  # a file system that can't tell
            finally:
                os.close(descriptor)
        return True
