"""The lines of a text file, wherever the windows end."""

import random
import re

import pytest
from foreign_files import WINDOWS, outcome_of, records_of, refusal
from inside import Lines, lines_module


def by_python(content):
    ended, last = content.split(b"\n")[:-1], content.split(b"\n")[-1]
    return [line for line in [*(part.removesuffix(b"\r") for part in ended), last] if line]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\r\n", b"\r", b"a", b"a\n", b"a\r\n", b"a\r", b"\ra\r\r\n", b"\n\n\na\n\n", b"\n" * 64,
     b"\n" * 65 + b"x", b"x" * 63 + b"\r\n" + b"y" * 62 + b"\n", b"x" * 64 + b"\nlast",
     b"x" * 63 + b"\n" + b"y" * 64 + b"\r\nz", b"x" * 127 + b"\r\ny", b"x" * 1000 + b"\n" + b"y" * 700,
     b"x" * 191 + b"\r\n\r\n" + b"y" * 700 + b"\r\n", b'{"a": 1}\n{"a": 2}\r\n' * 100],
)  # fmt: skip
def test_lines_are_those_of_python(content, window):
    assert records_of(Lines(), content, window) == by_python(content)


@pytest.mark.parametrize("seed", range(20))
def test_any_line_ends_anywhere(seed):
    rng = random.Random(seed)
    content = b"".join(
        rng.choice([b"\n", b"\r\n", b"\r", b"a" * rng.randrange(9), b"b" * rng.randrange(200)])
        for _ in range(200)
    )
    for window in (1, 2, 7, 64, 512):
        assert records_of(Lines(), content, window) == by_python(content)


@pytest.mark.parametrize(
    ("head", "way_out"),
    [
        (b"\x1f\x8b\x08\0\0", "gunzip"), (b"BZh91AY&SY", "bunzip2"), (b"\xfd7zXZ\0", "unxz"),
        (b"\x28\xb5\x2f\xfd", "unzstd"), (b"\xff\xfea\0", "iconv"), (b"\xfe\xff\0a", "iconv"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_lines_is_refused_with_the_way_out(head, way_out):
    assert re.search(f"folder/data, byte 0: .*{way_out}", refusal(Lines(), head + b"\n"))


def test_text_that_begins_as_bzip2_is_text():
    assert records_of(Lines(), b"BZh is a name\n") == [b"BZh is a name"]


@pytest.mark.parametrize("window", [64, 150])
def test_a_line_that_is_too_long_is_refused(monkeypatch, window):
    monkeypatch.setattr(lines_module, "MAX_LEAF_BYTES", 200)
    assert records_of(Lines(), b"a\n" + b"x" * 200 + b"\n", window) == [b"a", b"x" * 200]
    for end in (b"", b"\n", b"\n" + b"y" * 900):
        assert outcome_of(Lines(), b"a\n" + b"x" * 201 + end, window) is None
