"""CRC-32C as numpy finds it, against known values and against its definition."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from foreign_files import crc32c_slowly
from inside import crc32c

RNG = np.random.default_rng(3)
ROW = 256
# Of RFC 3720, appendix B.4, and the check value that catalogues of CRCs have.
KNOWN = {
    b"": 0,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}


def test_known_values():
    assert crc32c.crc32c_by_numpy(list(KNOWN)).tolist() == list(KNOWN.values())
    assert crc32c.crc32c_of_each(list(KNOWN)).tolist() == list(KNOWN.values())


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, 4, 5, 7, ROW - 5, ROW - 4, ROW - 3, ROW, 3 * ROW - 4, 7 * ROW + 1]
)
def test_any_size_and_any_beginning(size):
    value = RNG.bytes(size)
    assert crc32c.crc32c_by_numpy([value])[0] == crc32c_slowly(value)
    for cut in {0, size // 3, size}:
        begun = crc32c_slowly(value[:cut])
        assert crc32c.crc32c_by_numpy([value[cut:]], begun)[0] == crc32c_slowly(value)
        assert crc32c.extend(begun, memoryview(value)[cut:]) == crc32c_slowly(value)


@pytest.mark.parametrize("block", [1, 300, 1024, 2**21])
def test_values_are_summed_in_groups_and_pieces(monkeypatch, block):
    monkeypatch.setattr(crc32c, "_BLOCK_BYTES", block)
    values = [RNG.bytes(int(size)) for size in RNG.integers(0, 2000 if block > 1 else 20, 53)]
    assert crc32c.crc32c_by_numpy(values).tolist() == list(map(crc32c_slowly, values))


def test_no_values():
    assert crc32c.crc32c_by_numpy([]).tolist() == []
    assert crc32c.crc32c_of_rows(np.zeros((0, 8), np.uint8)).tolist() == []


def test_rows():
    rows = RNG.integers(0, 256, (17, 8), np.uint8)
    assert crc32c.crc32c_of_rows(rows).tolist() == [crc32c_slowly(row.tobytes()) for row in rows]


@pytest.mark.parametrize("implementation", ["c", "python"])
def test_a_library_is_used_only_if_it_has_its_c_code(monkeypatch, implementation):
    library = SimpleNamespace(extend=lambda crc, value: 7, implementation=implementation)
    monkeypatch.setitem(sys.modules, "google_crc32c", library)
    assert crc32c._library.__wrapped__() == (library.extend if implementation == "c" else None)
