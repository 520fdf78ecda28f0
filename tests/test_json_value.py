"""Json values: a plain tree has one text and comes back as it was; what is not plain is refused by path."""

import functools
import inspect
import json
import math
import random
import re
import struct
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from inside import MAX_JSON_DEPTH, JsonText, decode, decode_foreign, encode, json_value
from inside import BadValueError as Refused
from trees import same_json

CHAT = [
    {"role": "system", "content": "Réponds en français. 😀  "},
    {"role": "user", "content": 'a "quoted" \\ text\n\t\b\f\x00\x1f\x7f'},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"x": [1, 1.0, True]}}]},
]
SCALARS = [
    None, True, False, 0, 1, -1, 1.0, 0.0, -0.0, 1e-4, 9.999999e-5, 1e-5, 9999999999999998.0, 1e16, 1e300,
    5e-324, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), "", "null", " ",
]  # fmt: skip
EMPTY = [[], {}, [[]], {"": {}}, [{}], {"a": []}, [None]]


@pytest.fixture(params=["orjson", "json"])
def with_either(request, monkeypatch):
    if request.param == "orjson":
        pytest.importorskip("orjson")
    else:
        monkeypatch.setattr(json_value, "_orjson", None)


def canonical(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "value", [CHAT, *SCALARS, *EMPTY, SCALARS, EMPTY], ids=lambda value: repr(value)[:30]
)
def test_a_value_has_the_text_of_python_and_comes_back_as_it_was(value, with_either):
    assert encode(value) == canonical(value)
    for read in (decode, decode_foreign):
        for data in (encode(value), memoryview(encode(value))):
            assert same_json(read(data), value)


def test_every_character_is_written_as_python_writes_it(with_either):
    for first in range(0, 0x110000, 4096):
        text = "".join(chr(n) for n in range(first, first + 4096) if not 0xD800 <= n < 0xE000)
        assert encode([text, {text: 1}]) == canonical([text, {text: 1}])
        assert decode(encode([text])) == [text]


def test_every_float_is_written_as_python_writes_it(with_either):
    dice = random.Random(1)
    floats = [struct.unpack("d", struct.pack("Q", dice.getrandbits(64)))[0] for _ in range(20_000)]
    floats += [dice.uniform(-1, 1) * 10 ** dice.randrange(-8, 20) for _ in range(20_000)]
    for value in filter(math.isfinite, floats):
        assert encode(value) == canonical(value)
        assert same_json(decode(encode(value)), value)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TREES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=40,
)


@hypothesis.given(TREES)
def test_any_plain_tree_comes_back_as_it_was(value):
    assert encode(value) == canonical(value)
    assert same_json(decode(encode(value)), value)
    assert same_json(decode_foreign(encode(value)), value)


def nested(kind, depth):
    found = [] if kind is list else {}
    for _ in range(depth - 1):
        found = [found] if kind is list else {"a": found}
    return found


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("depth", [253, 254, 255, MAX_JSON_DEPTH - 1, MAX_JSON_DEPTH])
def test_a_deep_tree_comes_back(kind, depth, with_either):
    for value in (nested(kind, depth), [nested(kind, depth - 1), 1], {"x": 1, "y": nested(kind, depth - 1)}):
        assert encode(decode(encode(value))) == canonical(value)


def itself(kind, items):
    found = kind()
    if kind is list:
        found += [found] * items
    else:
        found |= {str(number): found for number in range(items)}
    return found


@pytest.mark.parametrize(
    "value",
    [nested(list, MAX_JSON_DEPTH + 1), nested(dict, MAX_JSON_DEPTH + 1), [nested(list, MAX_JSON_DEPTH), 1],
     itself(list, 1), itself(list, 3), itself(dict, 2)],
    ids=range(6),
)  # fmt: skip
def test_a_tree_that_is_too_deep_or_contains_itself_is_refused(value, with_either):
    with pytest.raises(Refused, match="nested more than 512 deep"):
        encode(value)


class Text(str):
    pass


REFUSED = [
    ((1, 2), "that is a tuple: write a list"),
    ([{"a": (1,)}], r"whose \[0\].a is a tuple: write a list"),
    ({"messages": [{}, {}, {"logprob": math.nan}]}, r"whose messages\[2\].logprob is nan, .* write None"),
    ([math.inf], r"whose \[0\] is inf"),
    ([-math.inf], r"whose \[0\] is -inf"),
    ([2**64], "64 bits can't hold"),
    ([-(2**63) - 1], "64 bits can't hold"),
    ({"a": b"x"}, "whose a is a bytes: write str, or a field of its own"),
    ({1: 2}, "has the key 1, and keys of JSON are str"),
    ({"a": {None: 2}}, "whose a has the key None"),
    ("\ud800", "has a lone surrogate"),
    ({"a": ["x", "\udfff"]}, r"whose a\[1\] has a lone surrogate"),
    ({"\udc00": 1}, "with a lone surrogate"),
    ([np.float32(1)], r"whose \[0\] is a numpy.float32: write its tolist\(\)"),
    ([np.arange(3)], r"is a numpy.ndarray: write its tolist\(\)"),
    ([Text("a")], "Text"),
    ([{1, 2}], "is a set: write str, numbers, lists or dicts"),
    (1j, "that is a complex"),
]


@pytest.mark.parametrize(("value", "says"), REFUSED, ids=[says[:30] for _, says in REFUSED])
def test_what_is_not_plain_is_refused_with_its_path(value, says, with_either):
    with pytest.raises(Refused) as error:
        encode(value)
    assert re.search(says, error.value.problem)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="what is written in C has a limit of its own")
def test_a_deep_tree_is_encoded_or_refused_however_much_is_left_of_the_stack():
    value = functools.reduce(lambda inner, _: [inner], range(400), 1)

    def encoded(depth):
        if depth > 0:
            return encoded(depth - 1)
        try:
            return encode(value)
        except Refused as error:
            return error.position, error.problem

    deepest = sys.getrecursionlimit() - len(inspect.stack())
    found = {encoded(deepest - left) for left in range(100, 600, 50)}
    says = "is a json value nested too deep for what is left of the stack"
    assert found == {canonical(value), (0, says)}


def test_later_changes_do_not_reach_what_was_encoded():
    value = {"a": [1]}
    text = JsonText(value)
    value["a"].append(2)
    assert decode(text.data) == {"a": [1]}
    assert len(text) == len(b'{"a":[1]}')


WRONG = [
    b"", b" ", b"nul", b"NaN", b"Infinity", b"-Infinity", b"[1,]", b"[1 2]", b'{"a":1,}', b"{a:1}", b"01",
    b"1.", b'"\xff"', b'"a', b"'a'", b'"\\ud800"', b'["\\udc00x"]', b"1e400", b"[1]x", b"\xef\xbb\xbf1",
    b'"\n"',
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=repr)
def test_a_text_that_is_no_json_is_a_value_error(text, with_either):
    with pytest.raises(ValueError, match=r"."):
        decode_foreign(text)


@pytest.mark.parametrize("digits", [b"18446744073709551616", b"-9223372036854775809", b"1" * 30, b"9" * 5000])
def test_an_integer_that_64_bits_cannot_hold_is_never_read_as_a_float(digits, with_either):
    for text in (digits, b'{"a": [0, %s]}' % digits):
        with pytest.raises(ValueError, match=r"."):
            decode_foreign(text)


@pytest.mark.parametrize("number", [2**64 - 1, 2**63, -(2**63), 10**18, 10**19 - 1])
def test_an_integer_of_64_bits_is_read_exactly_from_any_text(number, with_either):
    assert decode_foreign(b' {"a" :%d}\n' % number) == {"a": number}


def test_texts_that_are_changed_anywhere_are_read_as_something_plain_or_refused(with_either):
    dice, text, read = random.Random(2), bytearray(encode([*CHAT, {"n": SCALARS}])), 0
    for _ in range(500):
        changed = bytearray(text)
        for _ in range(dice.randrange(1, 4)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        changed = changed[: dice.randrange(len(changed))] if dice.random() < 0.2 else changed
        try:
            found = decode_foreign(bytes(changed))
        except ValueError:
            continue
        assert same_json(decode(encode(found)), found)
        read += 1
    assert 0 < read < 500
