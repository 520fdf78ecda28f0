"""The rows of .npy files are found; what can't be read at random, or is damaged, is refused."""

import itertools

import numpy as np
import pytest
from foreign_files import WINDOWS, npy_of, read, records_of, refusal
from inside import Npy

from yogadl import Leaf

DTYPES = ["bool", "uint8", "int16", "uint32", "int64", "float16", "float32", "float64", "complex64",
          "complex128", "datetime64[ns]", "timedelta64[D]"]  # fmt: skip


def with_header(text, data=b"", version=1):
    head = text.encode()
    length = len(head).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + head + data


def header(descr="'<i4'", order="False", shape="(2,)"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_those_of_numpy(dtype):
    for shape, rows in itertools.product([(), (2,), (3, 5), (1, 1, 1)], [0, 1, 2, 7, 131]):
        array = np.random.default_rng(rows).integers(0, 2, (rows, *shape)).astype(dtype)
        for window_bytes in WINDOWS:
            kind, records = read(Npy(), npy_of(array), window_bytes)
            assert kind.spec.tree == Leaf(dtype, shape)
            np.testing.assert_array_equal(np.reshape(records, array.shape), array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_each_version_of_the_header_is_read(version):
    array = np.arange(6, dtype="<i4")
    assert records_of(Npy(), npy_of(array, version=version)) == array.tolist()


def test_one_dimension_in_the_order_of_fortran_is_read():
    assert records_of(Npy(), with_header(header(order="True"), bytes(8))) == [0, 0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no .npy file"),
        (b"PK\3\4" + bytes(60), "no .npy file"),
        (npy_of(np.zeros((2, 3), order="F")), "order of Fortran"),
        (npy_of(np.zeros(3, ">f4")), "big-endian"),
        (npy_of(np.zeros((), "f4")), "0 dimensions"),
        (npy_of(np.zeros(3, "U5")), "no fixed form"),
        (npy_of(np.zeros(3, "S5")), "no fixed form"),
        (npy_of(np.zeros(3, "V5")), "no fixed form"),
        (npy_of(np.array([None]), allow_pickle=True), "no fixed form"),
        (npy_of(np.zeros(3, [("a", "i4")])), "structured"),
        (npy_of(np.zeros(3, "g")), "no stored form"),
        (npy_of(np.zeros((3, 0))), "no bytes"),
        (npy_of(np.zeros(3))[:-1], "cut or damaged"),
        (npy_of(np.zeros(3)) + b"1", "cut or damaged"),
        (npy_of(np.zeros(3))[:40], "file ends"),
        (with_header("x" * 5), "no dict"),
        (with_header("(" * 30000), "no dict"),
        (with_header("-" * 60000 + "1"), "no dict"),
        (with_header("1+" * 30000 + "1"), "no dict"),
        (with_header("__import__('os').abort()"), "no dict"),
        (with_header(header()[:-3] + ", 'more': 1}"), "no dict"),
        (with_header(header(shape="(-1,)")), "no shape"),
        (with_header(header(shape="(True,)")), "no shape"),
        (with_header(header(shape="(1" + "0" * 4200 + ", 1000)")), "no shape"),
        (with_header(header(shape="[2]")), "no shape"),
        (with_header(header(shape="(1,) * 9")), "no dict"),
        (with_header(header(shape=f"({2**62}, {2**62})")), "no stored form"),
        (with_header(header(shape="(1," + f"{2**29},)")), "more than"),
        (with_header(header(shape="(" + "1," * 40 + ")")), "40 dimensions"),
        (with_header(header(order="0")), "order of Fortran"),
        (with_header(header(descr="'<M8[s/0]'")), "no fixed form"),
        (with_header(header(descr="'<M8[xx]'")), "no stored form"),
        (with_header(header(descr="'<i3'")), "no stored form"),
        (with_header(header(descr="7")), "no fixed form"),
        (with_header(" " * 70000, version=2), "more than 65536"),
        (b"\x93NUMPY\x04\0" + bytes(60), "version"),
    ],
)
def test_what_is_refused(content, problem):
    assert problem in refusal(Npy(), content)
