"""Compare records to the last bit: structure, types, dtypes, shapes and bytes."""

import numpy as np


def assert_same(found, expected):
    """Fail unless `found` is what `expected` is stored as: the same tree, with numpy scalars."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list) and isinstance(found, np.ndarray):
        assert_same_numbers(found, np.asarray(expected))  # a list of numbers below a record is an array
    elif isinstance(expected, list | tuple):
        if hasattr(expected, "_fields"):
            assert type(found).__name__ == type(expected).__name__
            assert found._fields == expected._fields
        else:
            assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, str | bytes):
        assert type(found) is type(expected)
        assert found == expected
    else:
        assert_same_numbers(found, np.asarray(expected))


def assert_same_numbers(found, expected):
    if expected.shape == ():
        assert isinstance(found, np.generic)
    else:
        assert type(found) is np.ndarray
        assert found.flags.c_contiguous
        assert found.flags.writeable
    found = np.asarray(found)
    assert found.shape == expected.shape
    if expected.dtype.kind in "OUST":
        assert found.tolist() == expected.tolist()
        return
    native = expected.astype(expected.dtype.newbyteorder("="))
    assert found.dtype == native.dtype
    assert found.tobytes() == native.tobytes()
