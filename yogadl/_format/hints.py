"""Announce to the kernel the rows that will be read soon, unless they are in memory already.

Without an announcement, the kernel reads a page only when it is touched, one at a time, together with
neighbours that a shuffled epoch does not need. After an announcement, the kernel reads just the announced
pages, many at once (benchmarks/prefetch.py).
"""

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._format.fields import FixedField, VaryingField
from yogadl._format.rows import StoredRows

Int64s = NDArray[np.int64]

# Smaller rows share their pages with many others that the epoch needs, too.
_LEAST_BYTES: Final = 1024
_SAMPLED_ROWS: Final = 32
# After a cache was found in memory, it is not sampled again for this many records; each answer exempts the
# caller from announcing the next _SPARED_RECORDS records.
_TRUSTED_RECORDS: Final = 1 << 17
_SPARED_RECORDS: Final = 1 << 14


class Hints:
    """Announces rows of one cache. Safe to use from several threads: at worst rows are announced twice."""

    def __init__(self, fields: Sequence[FixedField | VaryingField]) -> None:
        self._fields = fields
        self._trusted = 0

    def give(self, rows: StoredRows) -> int:
        """Have the kernel read these rows, if not in memory; return how many records need no announcement."""
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

        A read without waiting is used, since mincore reports files of other users as always resident.
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
                return True  # the file system does not support such a read
            finally:
                os.close(descriptor)
        return True
