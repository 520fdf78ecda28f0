"""JSON of others is parsed within bounds, and what is wrong with it is one kind of error."""

import json

import pytest
from inside import MAX_DEPTH, MAX_VALUES, parse_json


@pytest.mark.parametrize(
    "document", [None, True, 0, -1, 2**64 - 1, -(2**63), 1.5, "x", "\ud800", [], {}, {"a": [1]}]
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_json_is_what_it_says(document, as_bytes):
    text = json.dumps(document)
    assert parse_json(text.encode() if as_bytes else text) == document


@pytest.mark.parametrize("depth", [0, 1, MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 10 * MAX_DEPTH, 10**6])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_json_may_be_nested_so_deep(depth, opening, closing):
    text = opening * depth + "1" + closing * depth
    if depth <= MAX_DEPTH:
        parse_json(text)
    else:
        with pytest.raises(ValueError, match=r"nested|values"):
            parse_json(text)


@pytest.mark.parametrize("digits", [1, 19, 20, 21, 22, 4_000, 4_300, 4_301, 5_000, 10**6])
@pytest.mark.parametrize("most", [20, 4300])
def test_an_integer_may_have_so_many_digits(digits, most):
    text = "9" * digits
    if digits <= most:
        assert parse_json(f"[{text}, -{text}]", most_digits=most)[0] == int(text)
    else:
        with pytest.raises(ValueError, match="digits"):
            parse_json(text, most_digits=most)


@pytest.mark.parametrize("values", [1, MAX_VALUES - 1, MAX_VALUES, MAX_VALUES + 1, 3 * MAX_VALUES])
def test_json_may_have_so_many_values(values):
    text = "[" + ",".join("0" * values) + "]"  # as many marks
    if values <= MAX_VALUES:
        assert len(parse_json(text)) == values
    else:
        with pytest.raises(ValueError, match="values"):
            parse_json(text)


@pytest.mark.parametrize("content", [b"", b"{", b"nul", b"\xff", b"\x00", "²", "[1,]", b"\xff\xfe["])
def test_what_is_no_json(content):
    with pytest.raises(ValueError):  # the parser's own words
        parse_json(content)
