"""What each format keeps to: windows, cuts, damage, batches, the first file, and the size of values."""

import pickle
import struct
import tarfile
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from arrow_by_hand import file_of, image_rows, images, stream_of
from foreign_files import (
    bytes_feature,
    example_of,
    field,
    float_feature,
    fuzz,
    int64_feature,
    mds_of,
    megatron_of,
    npy_of,
    outcome_of,
    read,
    reader_of,
    records_of,
    refusal,
    tar_of,
    tfrecord_of,
    varint,
)
from inside import MDS, Arrow, Lines, Megatron, Npy, TFRecord, WebDataset

from yogadl.errors import ConfigurationError


class Case(NamedTuple):
    """A small file, its format, and the records that it has."""

    form: Any
    content: bytes
    records: Any
    index: bytes | None = None

    @property
    def options(self):
        return {} if self.index is None else {"name": "data.bin", "siblings": {"data.idx": self.index}}


ROWS = np.arange(77, dtype="<i4").reshape(11, 7)
TOKENS = [np.arange(k * 7 % 23, dtype=np.int32) for k in range(23)]
# A record takes 16 bytes more than its data; some end around a window of 64 or 512 bytes.
VALUES = [bytes([k + 1]) * size for k, size in enumerate([0, 1, 5, 29, 46, 47, 48, 49, 0, 495, 496, 497])]
LINES = [b"x" * (1 + k % 90) for k in range(95)]
SAMPLES = [
    {"__key__": f"{'d' * 120 * (k % 2)}/{k}", "a": bytes([k]) * (k * 90), "b": b"%d" % k} for k in range(9)
]
MEMBERS = [(f"{s['__key__']}.{name}", s[name]) for s in SAMPLES for name in "ab"]
COLUMNS = {"n": "int", "b": "bytes", "e": "ndarray:int16", "g": "ndarray:int16:2"}
ARRAYS = [
    {"n": -k, "b": b"b" * k, "e": np.arange(1 + k % 5, dtype="<i2"), "g": np.array([k, -k], "<i2")}
    for k in range(9)
]
SHARD = mds_of(
    COLUMNS,
    [
        [struct.pack("<q", each["n"]), each["b"], bytes([4, len(each["e"])]) + each["e"].tobytes(),
         each["g"].tobytes()] for each in ARRAYS
    ],
)  # fmt: skip
UNKNOWN = [varint(9 << 3) + varint(2**64 - 1), varint(9 << 3 | 1) + bytes(8), field(9, b"x" * 200),
           varint(2000 << 3 | 5) + bytes(4)]  # fmt: skip
FEATURES = {"i": "bytes", "l": "int64", "v": ("float32", (None,)), "n": ("int64", (None,)), "s": "str"}
EXAMPLES = [
    {"i": b"x" * 40 * k, "l": 1, "v": np.arange(9 * k, dtype="<f4"), "s": "text",
     "n": np.array([0, -1, 2**31, 2**63 - 1] * 2)} for k in range(3)
]  # fmt: skip
NULLS = {"nulls": (1, 0, 2, 0, 1, 1), "bits": (b"\x1e", b"", b"\x19", b"", b"\x17", b"\x0f")}
NULL_ROWS = image_rows(present=range(1, 5), paths=(0, 3, 4), ends=range(3))


def example(values):
    features = {
        "i": bytes_feature(values["i"]), "l": int64_feature([values["l"]]), "v": float_feature(values["v"]),
        "n": int64_feature(values["n"].tolist()), "s": bytes_feature(values["s"].encode()),
    }  # fmt: skip
    return b"".join(UNKNOWN) + example_of(**features)


def ended(archive):
    return archive.rstrip(b"\0") + bytes(2048)


def arrow_rows(count):
    return [
        {"n": k, "s": "abc"[: k % 4], "b": k % 3 == 0, "f": b"%03d" % k, "l": np.array([float(k)] * (k % 4)),
         "a": np.array([k] * 5, "<i4")} for k in range(count)
    ]  # fmt: skip


CASES = {
    "npy": Case(Npy(), npy_of(ROWS), ROWS),
    "npy of numbers": Case(Npy(), npy_of(ROWS[:, 0]), ROWS[:, 0]),
    "megatron": Case(Megatron(), megatron_of(TOKENS)[0], TOKENS, megatron_of(TOKENS)[1]),
    "mds": Case(MDS(), SHARD, ARRAYS),
    "jsonl": Case(Lines(), b"\n".join(LINES), LINES),
    "tfrecord": Case(TFRecord(), tfrecord_of(VALUES), VALUES),
    "tfrecord unchecked": Case(TFRecord(checks_data=False), tfrecord_of(VALUES), VALUES),
    "example": Case(TFRecord(FEATURES, checks_data=False), tfrecord_of(map(example, EXAMPLES)), EXAMPLES),
    "tar of GNU": Case(WebDataset(), ended(tar_of(MEMBERS)), SAMPLES),
    "tar of pax": Case(WebDataset(), ended(tar_of(MEMBERS, tarfile.PAX_FORMAT)), SAMPLES),
    "a field of a tar": Case(
        WebDataset(("a",), missing="empty"), tar_of(MEMBERS),
        [{k: sample[k] for k in ("__key__", "a")} for sample in SAMPLES],
    ),
    "arrow": Case(Arrow(), stream_of(23, 9), arrow_rows(23)),
    "file of arrow": Case(Arrow(), file_of(stream_of(23, 9)), arrow_rows(23)),
    "number of arrow": Case(Arrow(("n",)), stream_of(23, 23), [{"n": k} for k in range(23)]),
    "structs of arrow": Case(Arrow(), images(), image_rows()),
    "nulls of arrow": Case(Arrow(missing="empty"), file_of(images(**NULLS)), NULL_ROWS),
}  # fmt: skip
ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@ALL
def test_records_are_the_same_wherever_windows_end(case):
    for window_bytes in (1, 7, 64, 512, 2**22):
        records = records_of(case.form, case.content, window_bytes, **case.options)
        np.testing.assert_equal(records, case.records)


@ALL
def test_damaged_files_are_refused_or_read_within_the_file(case):
    fuzz(case.form, case.content, rounds=300 if isinstance(case.form, TFRecord) else 900, **case.options)


@ALL
def test_a_file_that_is_cut_anywhere_is_refused_or_has_the_first_records(case):
    if case.form == Lines():  # a line may end anywhere
        return
    size = len(case.content)
    for end in {*range(0, size, 1 + size // 300), *range(size - 20, size)}:
        records = outcome_of(case.form, case.content[:end], **case.options)
        if records is not None:
            np.testing.assert_equal(records, list(case.records[: len(records)]))


@pytest.mark.parametrize("most", [1, 4, 5, 6, 100])
@pytest.mark.parametrize(
    ("module", "constant", "names"),
    [
        ("npy", "_BATCH_RECORDS", ["npy", "npy of numbers"]),
        ("megatron", "_BATCH_RECORDS", ["megatron"]),
        ("mds", "_BATCH_RECORDS", ["mds"]),
        ("arrow", "_BATCH_RECORDS", ["number of arrow"]),  # bits come by eights
        ("arrow", "_BATCH_VALUES", ["arrow", "structs of arrow", "nulls of arrow"]),
    ],
)
def test_a_batch_has_any_number_of_records(monkeypatch, module, constant, names, most):
    monkeypatch.setattr(f"yogadl._foreign.{module}.{constant}", most)
    for case in map(CASES.get, names):
        np.testing.assert_equal(records_of(case.form, case.content, **case.options), case.records)


@pytest.mark.parametrize(
    ("form", "content", "head"),
    [
        (Lines(), b"\n".join(LINES * 2), 0),
        (TFRecord(), tfrecord_of(VALUES * 3), 12),
        (WebDataset(("x",)), tar_of((f"{k}.x", bytes(k * 37)) for k in range(100)), 512),
    ],
)  # fmt: skip
def test_a_batch_has_the_records_that_begin_in_one_window(form, content, head):
    window, counts = 4096 if head == 512 else 512, []
    for columns in form.batches(reader_of(content, window)):
        first, last = ((columns[-1].positions[k] - head) // window for k in (0, -1))
        assert first == last
        counts.append(len(columns[-1].positions))
    assert sum(counts) == len(records_of(form, content))
    assert len(counts) > 10


OTHERS = {
    "npy": [Case(Npy(), npy_of(np.zeros((3, 7), "f8")), 0), Case(Npy(), npy_of(np.zeros((3, 6), "i4")), 0)],
    "megatron": [Case(Megatron(), *megatron_of([[1]], "int64")[:1], 0, megatron_of([[1]], "int64")[1])],
    "mds": [
        Case(MDS(), mds_of(columns, [], **sizes), 0)
        for columns, sizes in (
            ({**COLUMNS, "b": "str"}, {}), ({**COLUMNS, "n": "bytes"}, {}), ({**COLUMNS, "more": "int"}, {}),
            ({"n": "int"}, {}),
            ({**COLUMNS, "g": "ndarray:int16:4"}, {"column_sizes": [8, None, None, 8]}),
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_the_first_file_has_not_is_refused(name):
    known = read(CASES[name].form, CASES[name].content, **CASES[name].options)[0]
    for other in OTHERS[name]:
        assert "first file" in refusal(known, other.content, kind_is_known=True, **other.options)


@ALL
def test_a_format_pickles_with_what_the_first_file_decided(case):
    for form in (case.form, read(case.form, case.content, **case.options)[0]):
        assert pickle.loads(pickle.dumps(form)) == form


@pytest.mark.parametrize(
    ("module", "form", "content", "said"),
    [
        ("lines", Lines(), b"\n".join, "a line is longer than 10 bytes"),
        ("tfrecord", TFRecord(), tfrecord_of, "a record has 11 bytes, more than 10"),
        ("tar", WebDataset(), lambda values: tar_of([("a.x", *values)]), "'a.x' has 11 bytes"),
    ],
)  # fmt: skip
def test_a_value_has_at_most_as_many_bytes_as_values_can_have(monkeypatch, module, form, content, said):
    monkeypatch.setattr(f"yogadl._foreign.{module}.MAX_LEAF_BYTES", 10)
    assert len(records_of(form, content([b"x" * 10]))) == 1
    for window in (2, 7):
        assert said in refusal(form, content([b"x" * 11]), window)


@pytest.mark.parametrize(
    ("form", "names", "others"),
    [
        (Lines(), "a.jsonl a.ndjson", "a.json jsonl a.jsonl.gz"),
        (TFRecord(), "a.tfrecord a.tfrecords a.tfrec train.tfrecord-00000-of-01024",
         "train.tfrecord-00000-of-01024.tmp train-00000-of-01024 a.tfrecord.gz tfrecord"),
    ],
)  # fmt: skip
def test_names(form, names, others):
    assert [form.matches(name) for name in names.split()] == [True] * len(names.split())
    assert [form.matches(name) for name in others.split()] == [False] * len(others.split())


def test_options_are_kept_by_what_replaces_others():
    form = TFRecord({"a": "int64"})
    assert form.spec.keys() == ["a"]
    assert replace(form, checks_data=False) == TFRecord({"a": "int64"}, checks_data=False)
    assert TFRecord().of_first_file(reader_of(b"")) == TFRecord()


@pytest.mark.parametrize("form", [MDS, Arrow, WebDataset])
def test_fields_are_names_once_each(form):
    for fields in ((), ("a", "a"), "a", (1,), *([["a"]] if form is not WebDataset else [])):
        with pytest.raises(ConfigurationError):
            form(fields)


@pytest.mark.parametrize(("form", "content"), [(MDS, SHARD), (Arrow, stream_of(1, 1))])
def test_a_field_that_the_first_file_has_not_is_refused(form, content):
    with pytest.raises(ConfigurationError, match="there is no column 'z'"):
        form(("z",)).of_first_file(reader_of(content))
