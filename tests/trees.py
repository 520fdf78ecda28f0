"""Compare records to the last bit: structure, types, dtypes, shapes and bytes."""

import itertools
import struct

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


def assert_equal(found, expected):
    """Fail unless records, batches or lists of them are equal, arrays also in their types."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert type(found) is type(expected)
        assert np.array_equal(found, expected), (found, expected)


def assert_same_batches(found, expected):
    """Fail unless two streams have the same batches, one at least."""
    count = 0
    for one, other in itertools.zip_longest(found, expected):
        assert_equal(one, other)
        count += 1
    assert count


# Json values of every kind.
JSON_VALUES = [
    None, "text", 3, 2.5, True, [], {}, {"role": "user", "content": "hé", "n": [1, 2.5, None]},
    [{"b": 1}, {"a": []}], ["x", "y"],
]  # fmt: skip


def same_json(one, other):
    """Return whether two json values are equal, also in types, the order of keys and the sign of zero."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return one == other


def shared_parts(values):
    """Return the lists and dicts that several json values, or several places of one, have in common."""
    found, level = {}, list(values)
    shared = []
    while level:
        parts = [value for value in level if isinstance(value, list | dict)]
        for part in parts:
            if id(part) in found:
                shared.append(part)
            found[id(part)] = part
        level = [item for part in parts for item in (part.values() if isinstance(part, dict) else part)]
    return shared
