"""Our CRC-32C against google_crc32c, which is used where it is installed."""

import google_crc32c
import numpy as np
from inside import crc32c


def test_many_values_of_many_sizes():
    rng = np.random.default_rng(4)
    values = [rng.bytes(int(size)) for size in [*rng.integers(0, 9000, 500), 3 * 2**20, 9 * 2**20 + 1, 2**22]]
    expected = [google_crc32c.value(value) for value in values]
    views = list(map(memoryview, values))
    assert crc32c.crc32c_by_numpy(views).tolist() == expected
    assert crc32c.crc32c_of_each(views).tolist() == expected
    assert crc32c._library() is google_crc32c.extend
