"""The features of a tf.train.Example, written by hand in all ways that protobuf allows."""

import re

import numpy as np
import pytest
from foreign_files import (
    WINDOWS,
    bytes_feature,
    entry,
    example_of,
    field,
    float_feature,
    int64_feature,
    reader_of,
    records_of,
    refusal,
    tfrecord_of,
    varint,
)
from inside import Places, TFRecord, example_module

import yogadl
from yogadl.errors import ConfigurationError

UNKNOWN = [
    varint(9 << 3) + varint(2**64 - 1),
    varint(9 << 3 | 1) + bytes(8),
    field(9, b"x" * 200),
    varint(2000 << 3 | 5) + bytes(4),
]
FLOATS = np.arange(24, dtype=np.float32) / 7
INTS = [0, 1, -1, 127, 128, 2**31, -(2**63), 2**63 - 1]


def one(features, *entries, window=4 * 2**20):
    (record,) = records_of(TFRecord(features), tfrecord_of([example_of(*entries)]), window)
    return record


def refused(features, content):
    return refusal(TFRecord(features), tfrecord_of([content]))


def assert_same(record, expected):
    assert list(record) == list(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert record[name].dtype == value.dtype
            assert record[name].shape == value.shape
            np.testing.assert_array_equal(record[name], value)
        else:
            assert record[name] == value


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("is_packed", [True, False])
def test_features_of_all_kinds(window, is_packed):
    features = {
        "image": "bytes", "name": "str", "label": "int64", "score": "float32", "vec": ("float32", (24,)),
        "boxes": ("float32", (None, 4)), "small": ("float32", (2, 2)), "ids": ("int64", (None,)),
        "pair": yogadl.Leaf("int64", (2,)),
    }  # fmt: skip
    records, expected = [], []
    for k in range(50):
        label = 3**k - 2 * 5 ** (k // 2)
        values = {
            "image": bytes([k]) * (k * 29), "name": "ü" * k, "label": label if label < 2**63 else k,
            "score": np.float32(k / 3), "vec": FLOATS + k, "boxes": FLOATS[: k % 7 * 4].reshape(-1, 4),
            "small": FLOATS[:4].reshape(2, 2) * k, "ids": np.array((INTS * k)[:k], np.int64),
            "pair": np.array([k, -k]),
        }  # fmt: skip
        written = {"image": bytes_feature(values["image"]), "name": bytes_feature(values["name"].encode())}
        for name in ("score", "vec", "boxes", "small"):
            in_one = is_packed or (name == "boxes" and k % 2)
            written[name] = float_feature(np.ravel(values[name]), is_packed=in_one)
        for name in ("label", "ids", "pair"):
            written[name] = int64_feature(np.ravel(values[name]).tolist(), is_packed=is_packed)
        order = sorted(written, key=lambda name, k=k: hash((len(name) * 7 + ord(name[0])) * (k + 1)) % 11)
        records.append(example_of(**{name: written[name] for name in order}))
        expected.append(values)
    found = records_of(TFRecord(features), tfrecord_of(records), window)
    for pair in zip(found, expected, strict=True):
        assert_same(*pair)


def test_large_values_lie_in_the_file():
    arrays = {"v": ("float32", (5,)), "w": ("float32", (None,)), "x": ("float32", (4,))}
    features = {"i": "bytes", "s": "str", **arrays}
    texts = {"i": bytes_feature(b"jpeg"), "s": bytes_feature(b"text")}
    floats = {name: float_feature(FLOATS[:count]) for name, count in {"v": 5, "w": 0, "x": 4}.items()}
    content = tfrecord_of([example_of(**texts, **floats)])
    (batch,) = TFRecord(features).batches(reader_of(content))
    assert [isinstance(column, Places) for column in batch] == [True, True, True, True, False]
    assert content[batch[0].positions[0] :].startswith(b"jpeg")
    assert content[batch[2].positions[0] :].startswith(FLOATS[:5].tobytes())
    assert [column.shapes is None for column in batch[:4]] == [True, True, False, False]
    assert batch[2].shapes.tolist() == [[1, 5]]
    assert batch[3].shapes.tolist() == [[1, 0]]


def test_features_are_named_in_another_order_than_they_lie_in(storage, tmp_path):
    texts = [{"a": b"a" * (200 + n), "b": bytes([n]) * 300} for n in range(50)]
    written = [example_of(**{name: bytes_feature(one[name]) for name in "ba"}) for one in texts]
    (tmp_path / "one.tfrecord").write_bytes(tfrecord_of(written))
    features = {"a": "bytes", "b": "bytes"}
    ref = storage.adopt(
        tmp_path / "one.tfrecord", "d", "1", format="tfrecord", files=yogadl.FileOptions(features=features)
    )
    assert [dict(record) for record in ref] == texts
    storage.verify("d", "1")


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_unknown_fields_are_skipped_everywhere(unknown):
    value = field(1, unknown + field(1, b"abc") + unknown)
    strange = field(1, unknown + field(1, b"a") + unknown + field(2, unknown + value + unknown) + unknown)
    content = unknown + field(1, unknown + strange + unknown) + unknown
    form = TFRecord({"a": ("float32", (6,))})
    floats = field(2, unknown + field(1, FLOATS[:6].tobytes()))
    strange_floats = field(1, field(2, floats) + field(1, b"a"))
    assert_same(records_of(form, tfrecord_of([field(1, strange_floats)]))[0], {"a": FLOATS[:6]})
    assert "has 1 values" in refused({"a": "bytes"}, content)  # which does not fill its list


def test_the_last_of_entries_of_a_key_counts_in_all_pieces_of_an_example():
    content = example_of(entry(b"a", int64_feature([1])), entry(b"a", int64_feature([2]))) + example_of(
        entry(b"b", int64_feature([3])), entry(b"a", int64_feature([4]))
    )
    assert records_of(TFRecord({"a": "int64", "b": "int64"}), tfrecord_of([content])) == [{"a": 4, "b": 3}]


def test_a_key_after_the_value_no_key_and_a_long_key():
    after = field(1, field(2, int64_feature([5])) + field(1, b"a"))
    without = field(1, field(2, int64_feature([6])))
    long = entry(b"k" * 300, int64_feature([7]))
    twice = field(1, field(1, b"x") + field(1, b"y") + field(2, int64_feature([8])))
    features = dict.fromkeys(["a", "", "k" * 300, "y"], "int64")
    assert list(one(features, after, without, long, twice).values()) == [5, 6, 7, 8]


def test_lists_in_several_pieces():
    floats = field(
        2, field(1, FLOATS[:2].tobytes()) + b"\x0d" + FLOATS[2:3].tobytes() + field(1, FLOATS[3:9].tobytes())
    )
    ints = field(3, field(1, b"\1\2") + b"\x08\3" + field(1, bytes(range(100))))
    record = one({"f": ("float32", (None,)), "i": ("int64", (None,))}, entry(b"f", floats), entry(b"i", ints))
    assert_same(record, {"f": FLOATS[:9], "i": np.array([1, 2, 3, *range(100)])})


def test_many_integers_of_all_lengths():
    values = [(-1) ** k * 2**k + k for k in range(63)] * 5
    for is_packed in (True, False):
        record = one({"i": ("int64", (None, 5))}, entry(b"i", int64_feature(values, is_packed=is_packed)))
        assert_same(record, {"i": np.array(values).reshape(-1, 5)})


I64, B, F = int64_feature([1]), bytes_feature(b"x"), float_feature([1.0])


@pytest.mark.parametrize(
    ("feature", "content", "said"),
    [
        ("int64", example_of(b=I64), "feature 'a': the record has no such feature"),
        ("int64", b"", "no such feature"),
        ("int64", example_of(a=b""), "no such feature"),
        ("int64", example_of(field(1, field(1, b"a"))), "no such feature"),
        ("int64", example_of(a=B), "it is a bytes_list, not the int64_list of int64"),
        ("float32", example_of(a=I64), "it is a int64_list, not the float_list of float32"),
        ("str", example_of(a=F), "it is a float_list, not the bytes_list"),
        ("bytes", example_of(a=bytes_feature()), "it has 0 values"),
        ("bytes", example_of(a=bytes_feature(b"1", b"2")), "it has 2 values"),
        ("int64", example_of(a=int64_feature([])), "it has 0 values, .* shape \\(\\)"),
        ("int64", example_of(a=int64_feature([1, 2])), "it has 2 values"),
        (
            ("int64", (3,)),
            example_of(a=int64_feature([1, 2])),
            "it has 2 values, .* shape \\(3,\\)",
        ),
        (("float32", (None, 4)), example_of(a=float_feature(FLOATS[:6])), "it has 6 values"),
        (("float32", (9,)), example_of(a=float_feature(FLOATS[:6])), "it has 6 values"),
        ("float32", example_of(a=field(2, field(1, b"abc"))), "its floats are cut"),
        ("int64", example_of(a=field(3, field(1, b"\x80"))), "ends too early"),
        (
            "int64",
            example_of(entry(b"a", field(3, field(1, b"\x80"))), entry(b"b", I64)),
            "an integer is cut",
        ),
        (
            ("int64", (None,)),
            example_of(a=field(3, field(1, b"\1" * 99 + b"\x80"))),
            "an integer is cut",
        ),
        (
            ("int64", (None,)),
            example_of(a=field(3, field(1, b"\xff" * 99 + b"\1"))),
            "than ten bytes",
        ),
        ("int64", example_of(a=field(3, field(1, b"\xff" * 10 + b"\1"))), "more than ten bytes"),
        ("int64", example_of(field(1, field(1, b"a") + field(2, I64) + field(2, I64))), "several pieces"),
        ("int64", example_of(a=I64 + I64), "several pieces"),
        ("int64", b"\x0b\x0c", "a group, or is no message"),
        ("int64", b"\x0a\x05\x0a", "no message of protobuf"),
        ("int64", b"\x0a", "ends too early"),
        ("int64", b"\x00\x00", "no message of protobuf"),
        ("int64", b"\x80" * 11, "more than ten bytes"),
        ("int64", b"\x0a\x02\x0a\x09", "no tf.train.Example: an entry reaches behind the end"),
        ("int64", b"not a message", "no tf.train.Example"),
    ],
)
def test_what_is_refused(feature, content, said):
    assert re.search(f"folder/data, byte 12: record 0: .*({said})", refused({"a": feature}, content))


def test_the_record_is_named_by_its_number():
    good, bad = example_of(a=I64), example_of(b=I64)
    content = tfrecord_of([good] * 7 + [bad, good])
    assert "record 7: feature 'a'" in refusal(TFRecord({"a": "int64"}), content, 64)


def test_lists_that_are_too_long_are_refused(monkeypatch):
    monkeypatch.setattr(example_module, "MAX_LEAF_BYTES", 800)
    for count in (100, 101):
        ints = example_of(a=int64_feature(range(count)))
        floats = example_of(a=float_feature(range(2 * count)))
        for feature, content in ((("int64", (None,)), ints), (("float32", (None,)), floats)):
            if count == 100:
                assert records_of(TFRecord({"a": feature}), tfrecord_of([content]))
            else:
                assert "more than 800 bytes" in refused({"a": feature}, content)


@pytest.mark.parametrize(
    "features",
    [
        {}, [("a", "int64")], {1: "int64"}, {"a": "int32"}, {"a": "uint8"}, {"a": None}, {"a": np.int64},
        {"a": ("bytes", (None,))}, {"a": ("str", (2,))}, {"a": ("int64", None)},
        {"a": ("int64", (None, None))}, {"a": ("int64", (None, 0))}, {"a": ("int64", [2])},
        {"a": ("int64", (2,), 3)},
        {"a": yogadl.Leaf("float64", (2,))},
    ],
)  # fmt: skip
def test_features_are_checked(features):
    with pytest.raises(ConfigurationError):
        TFRecord(features)


@pytest.mark.parametrize("window", WINDOWS)
def test_features_that_a_record_lacks_may_be_empty(window):
    rest = {"n": ("int64", (None,)), "f": ("float32", (None, 2)), "k": "int64"}
    features = {"b": "bytes", "s": "str", **rest}
    texts = {"b": bytes_feature(b"1"), "s": bytes_feature(b"2")}
    lists = {"n": int64_feature([3]), "f": float_feature([4.0, 5.0])}
    k = int64_feature([6])
    records = [example_of(**texts, **lists, k=k), example_of(k=k), example_of(b=b"", **lists, k=k)]
    form = TFRecord(features, "empty")
    first, second, third = records_of(form, tfrecord_of(records), window)
    assert_same(first, {"b": b"1", "s": "2", "n": np.array([3]), "f": np.array([[4, 5]], np.float32), "k": 6})
    nothing = {"n": np.zeros(0, np.int64), "f": np.zeros((0, 2), np.float32)}
    assert_same(second, {"b": b"", "s": "", **nothing, "k": 6})
    assert_same(third, {**first, "b": b"", "s": ""})
    said = refusal(TFRecord(features), tfrecord_of(records), window)
    assert "record 1: feature 'b': the record has no such feature" in said
    lacks_k = tfrecord_of([records[0], example_of(**texts, **lists)])
    assert "record 1: feature 'k'" in refusal(form, lacks_k, window)  # of fixed size


@pytest.mark.parametrize("window", WINDOWS)
def test_a_feature_that_no_record_of_the_first_file_has_is_refused(window):
    def records(names):
        return tfrecord_of([example_of(entry(name, bytes_feature(b"x" * 100))) for name in names])

    form = TFRecord({"a": "bytes", "b": "bytes"}, "empty")
    assert len(records_of(form, records([b"a", b"a", b"b"]), window)) == 3
    assert "no record of this first file has 'b'" in refusal(form, records([b"a", b"a", b"c"]), window)
    with pytest.raises(ConfigurationError, match="missing is about features"):
        TFRecord(None, "empty")


@pytest.mark.parametrize("window", WINDOWS)
def test_features_that_a_record_lacks_may_have_a_value_each(window):
    features = {"b": "bytes", "k": "int64", "x": "float32", "f": ("float32", (None, 2))}
    texts, lists = {"b": bytes_feature(b"1"), "k": int64_feature([6])}, {"f": float_feature([4.0, 5.0])}
    without_values = example_of(k=int64_feature([]), x=float_feature([]))
    records = [example_of(**texts, **lists, x=float_feature([0.5])), example_of(), without_values]
    form = TFRecord(features, {"b": "empty", "k": -(2**63), "x": float("nan"), "f": "empty"})
    first, *others = records_of(form, tfrecord_of(records), window)
    assert_same(first, {"b": b"1", "k": 6, "x": 0.5, "f": np.array([[4, 5]], np.float32)})
    for record in others:
        assert np.isnan(record.pop("x"))
        assert_same(record, {"b": b"", "k": -(2**63), "f": np.zeros((0, 2), np.float32)})
    assert "feature 'b': the record has no such feature: give features without it, or missing=\"empty\"" in (
        refused(features, b"")
    )
    said = refused({"k": "int64"}, b"")
    assert "or a number in its place, missing={'k': -1}" in said
    assert records_of(TFRecord({"k": "int64"}, {"k": -1}), tfrecord_of([records[0], b""]))[1] == {"k": -1}


@pytest.mark.parametrize(
    "missing",
    [
        "all", 1, {1: "empty"}, {"other": -1}, {"b": -1}, {"b": b""}, {"k": "empty"}, {"k": 0.5},
        {"k": 2**63}, {"k": True}, {"v": 1.0}, {"v": "empty"}, {"x": "a"}, {"x": 1e300},
        {"k": None, "other": "empty"},
    ],
)  # fmt: skip
def test_what_a_feature_can_not_have_is_refused(missing):
    with pytest.raises(ConfigurationError, match="missing"):
        TFRecord({"b": "bytes", "k": "int64", "x": "float32", "v": ("float32", (3,))}, missing)
