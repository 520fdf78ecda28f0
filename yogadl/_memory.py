"""Keep the C library from mapping and unmapping memory for every large array."""

from typing import Final

import numpy as np

# Just below the 32 MiB from which on glibc always maps anew.
_SETTLING_BYTES: Final = 31 * 2**20


def settle_allocator() -> None:
    """Free one large array that nobody touched.

    Until an array of some size has been freed, glibc maps each such array anew and faults it in page by
    page; after that it keeps the memory. What is gathered in one thread and freed in another loses half of
    its throughput to that (benchmarks/prefetch.py), and LMDB some for every block that it is given
    (benchmarks/build.py). Costs a few microseconds; harmless with other C libraries.
    """
    np.empty(_SETTLING_BYTES, np.uint8)
