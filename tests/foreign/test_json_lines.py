"""JSON Lines that are adopted with ``parse=True``: a record is the json value of a line."""

import json

import pytest

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError, UnsupportedDataError

VALUES = [
    {"messages": [{"role": "user", "content": "ö 😀\n"}, {"role": "assistant", "content": None}]},
    {"messages": [], "tools": [{"name": "f", "parameters": {"type": "object"}}]},
    {"n": [1, 1.0, True, 2**64 - 1, -(2**63), 1e-5, 1e300], "": {}},
    [1, [2, [3]]],
    "a text",
    5,
    None,
]


def write(path, values, ends="\n", **how):
    path.write_text("".join(json.dumps(value, **how) + ends for value in values), "utf-8", newline="")
    return path


@pytest.mark.parametrize(
    "how", [{}, {"ensure_ascii": False}, {"indent": None, "separators": (" ,  ", " : ")}]
)
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("read", [True, False])
def test_a_record_is_the_value_of_a_line(storage, tmp_path, how, ends, read):
    path = write(tmp_path / "a.jsonl", VALUES, ends, **how)
    ref = storage.adopt(path, "d", "1", parse=True, files=yogadl.FileOptions(read=read))
    assert ref.spec == yogadl.from_source(VALUES, spec=yogadl.Leaf("json")).spec
    assert [json.dumps(value) for value in ref] == list(map(json.dumps, VALUES))
    storage.verify("d", "1")
    for copy in (
        storage.submit(ref, "copy", "1", build=yogadl.BuildOptions(metadata={})),
        storage.compact("d", "1", "2", materialize=True),
        storage.compact("d", "1", "3"),
    ):
        assert [json.dumps(value) for value in copy] == list(map(json.dumps, VALUES))
    cursor = ref.stream(shuffle=True, shuffle_seed=1).cursor(delivered=3)
    rest = list(storage.fetch("copy", "1").stream(shuffle=True, shuffle_seed=1, cursor=cursor))
    assert list(map(json.dumps, rest)) == [
        json.dumps(value) for value in list(ref.stream(shuffle=True, shuffle_seed=1))[3:]
    ]


def test_lines_that_are_added_are_parsed_as_before(storage, tmp_path):
    write(tmp_path / "a.jsonl", VALUES[:3])
    storage.adopt(str(tmp_path / "*.jsonl"), "d", "1", parse=True)
    write(tmp_path / "b.jsonl", VALUES[3:])
    assert list(storage.refresh("d", "1", new_version="2")) == VALUES
    write(tmp_path / "c.jsonl", VALUES[:1])
    with pytest.raises(ConfigurationError, match="was adopted with"):
        storage.adopt(tmp_path / "c.jsonl", "d", "3", files=yogadl.FileOptions(base_version="2"))
    ref = storage.append(VALUES[1:2], "d", "3", base_version="2")
    assert list(ref) == [*VALUES, VALUES[1]]


WRONG = [
    b'{"a": NaN}', b'{"a": 123456789012345678901234567890}', b"{'a': 1}", b'{"a": 1', b'{"a": "\xff"}',
    b'["\\ud800"]', b"1e999",
]  # fmt: skip


@pytest.mark.parametrize("line", WRONG, ids=repr)
def test_a_line_that_has_no_exact_value_is_refused_with_its_place(storage, tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(UnsupportedDataError, match=r"a\.jsonl.* 9\b.*no JSON, or has no exact form here"):
        storage.adopt(path, "d", "1", parse=True)
    assert storage.datasets() == []
    ref = storage.adopt(path, "d", "1", parse=True, files=yogadl.FileOptions(read=False))
    assert ref[0] == {"a": 1}
    with pytest.raises(CacheFormatError, match="is no JSON"):
        ref[1]


def test_only_lines_are_parsed(storage, tmp_path):
    write(tmp_path / "a.tar", VALUES)
    with pytest.raises(ConfigurationError, match="parse: no option of the format 'webdataset'"):
        storage.adopt(tmp_path / "a.tar", "d", "1", format="webdataset", parse=True)
