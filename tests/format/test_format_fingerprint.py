"""The fingerprint equals a slow reference in straight Python, written from docs/explanation/format.md."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import RunHash, fingerprint_of, hash_rows, hash_run, spec_of
from inside import fingerprint as hashing
from xxhash import xxh3_64_intdigest

import yogadl

P = 2**61 - 1
B = 0x1B8735931EDC6F41 % P
SEED = 0x9E3779B97F4A7C15
M = 2**64 - 1


def step(s, w):
    s = (s ^ w) * 0xD6E8FEB86659FD93 & M
    return s ^ s >> 32


def value_hash(shape, content):
    s = step(SEED, len(shape))
    for size in shape:
        s = step(s, size)
    s = step(s, len(content))
    if len(content) > 512:
        return step(s, xxh3_64_intdigest(content))
    for start in range(0, len(content), 8):
        s = step(s, int.from_bytes(content[start : start + 8], "little"))
    return s


def record_hash(values):
    s = SEED
    for shape, content in values:
        s = step(s, value_hash(shape, content))
    s = s * 0xA0761D6478BD642F & M
    return (s ^ s >> 29) % P


def run_hash(records):
    total = 0
    for values in records:
        total = (total * B + record_hash(values)) % P
    return total


def fingerprint(spec_json, records):
    document = {"records": len(records), "spec": spec_json, "value": run_hash(records), "version": 1}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


SIZES = st.sampled_from([0, 1, 3, 7, 8, 9, 15, 16, 17, 63, 64, 504, 511, 512, 513, 520, 1000])


def hash_values(contents, shapes):
    """Hash values as the writer hands them over: back to back, with rank and sizes of each."""
    table = np.zeros((len(shapes), 1 + max(map(len, shapes), default=0)), np.int64)
    for row, shape in zip(table, shapes, strict=True):
        row[: 1 + len(shape)] = [len(shape), *shape]
    lengths = np.array([len(content) for content in contents], np.int64)
    return hashing.hash_values(np.frombuffer(b"".join(contents), np.uint8), lengths, table)


@given(st.binary(min_size=1, max_size=9), SIZES, st.integers(1, 7))
def test_rows_of_one_size_hash_as_the_reference_does(seed, size, count):
    content = hashlib.shake_256(seed).digest(size * count)
    rows = np.frombuffer(content, np.uint8).reshape(count, size)
    expected = [value_hash((size,), row.tobytes()) for row in rows]
    assert hash_rows(rows, (size,)).tolist() == expected
    values = [row.tobytes() for row in rows]
    assert hash_values(values, [(size,)] * count).tolist() == expected


@given(
    st.lists(
        st.tuples(st.binary(max_size=40) | SIZES.map(bytes), st.lists(st.integers(0, 9), max_size=4)),
        max_size=20,
    )
)
def test_values_of_any_size_and_shape_hash_as_the_reference_does(values):
    contents, shapes = [content for content, _ in values], [tuple(shape) for _, shape in values]
    expected = [value_hash(shape, content) for content, shape in zip(contents, shapes, strict=True)]
    assert hash_values(contents, shapes).tolist() == expected


@given(st.lists(st.integers(0, M), max_size=30), st.integers(1, 3), st.integers(0, 30))
def test_runs_hash_as_the_reference_does_and_join(words, fields, cut):
    columns = [np.array(words, np.uint64) + np.uint64(f) for f in range(fields)]

    def record(i):
        s = SEED
        for column in columns:
            s = step(s, int(column[i]))
        s = s * 0xA0761D6478BD642F & M
        return (s ^ s >> 29) % P

    total = 0
    for i in range(len(words)):
        total = (total * B + record(i)) % P
    whole = hash_run(columns, len(words))
    assert whole == RunHash(len(words), total)
    cut = min(cut, len(words))
    first = hash_run([column[:cut] for column in columns], cut)
    second = hash_run([column[cut:] for column in columns], len(words) - cut)
    assert first.then(second) == whole


def test_long_runs_join_across_every_cut():
    column = np.random.default_rng(0).integers(0, M, 20_000, np.uint64, endpoint=True)
    whole = hash_run([column], len(column))
    for cut in (0, 1, 8191, 8192, 8193, 16_384, 19_999, 20_000):
        first, second = hash_run([column[:cut]], cut), hash_run([column[cut:]], len(column) - cut)
        assert first.then(second) == whole
    a, b, c = (hash_run([column[k::3]], len(column[k::3])) for k in range(3))
    assert a.then(b).then(c) == a.then(b.then(c))


def test_a_whole_cache_has_the_fingerprint_of_the_reference(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    rng = np.random.default_rng(0)
    records = [
        {
            "n": i,
            "x": rng.normal(size=(2, 3)).astype(np.float32),
            "r": np.arange(i % 4),
            "t": "ü" * (i % 300),
            "b": b"\0" * i,
        }
        for i in range(50)
    ]
    storage.submit(records, "d", "1", build=yogadl.BuildOptions(part_bytes=2000))
    ref = storage.fetch("d", "1")
    values = [
        [
            ((), np.int64(r["n"]).tobytes()),
            ((2, 3), r["x"].tobytes()),
            (r["r"].shape, r["r"].tobytes()),
            ((), r["t"].encode()),
            ((), r["b"]),
        ]
        for r in records
    ]
    assert ref.fingerprint == fingerprint(ref.spec.to_json(), values)


def test_a_fingerprint_never_changes():
    """Golden: a change here orphans every cursor that anybody saved."""
    spec = spec_of({"x": np.zeros(3, np.uint8), "t": "a"})
    rows = hash_rows(np.arange(12, dtype=np.uint8).reshape(4, 3), (3,))
    texts = hash_values([b"", b"a", b"x" * 512, b"y" * 513], [()] * 4)
    run = hash_run([rows, texts], 4)
    values = [
        [((3,), bytes(range(3 * i, 3 * i + 3))), ((), t)]
        for i, t in enumerate([b"", b"a", b"x" * 512, b"y" * 513])
    ]
    assert run.value == run_hash(values)
    assert fingerprint_of(spec, run) == fingerprint(spec.to_json(), values) == GOLDEN


GOLDEN = "c3527f3eeec01d8304d1b136a659d784"


@pytest.mark.parametrize(
    "shapes", [[(2, 3), (3, 2)], [(6,), (2, 3)], [(), (1,)], [(0, 3), (3, 0)], [(0,), ()]], ids=str
)
def test_the_shape_counts_even_where_the_bytes_are_the_same(shapes):
    content = bytes(int(np.prod(shapes[0])))
    one, other = hash_values([content, content], shapes).tolist()
    assert one != other


@given(st.binary(min_size=1, max_size=600), st.data())
def test_any_changed_bit_changes_the_hash(content, data):
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    one, other = hash_values([content, bytes(changed)], [()] * 2).tolist()
    assert one != other
    padded = hash_values([content, content + b"\0"], [()] * 2).tolist()
    assert padded[0] != padded[1]
