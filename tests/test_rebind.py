"""`rebind=True` where a row is not one record: only if all records are as long as before."""

import json
from collections import Counter

import numpy as np
import pytest

import yogadl
from yogadl import Leaf
from yogadl.errors import CursorError

SPEC = {"tokens": Leaf("int64", (None,)), "id": Leaf("int64")}
LENGTHS = [number % 7 + 1 for number in range(120)]


def of(lengths, name, first=0):
    """Return documents, each of one number as often as it is long."""
    records = [
        {"tokens": np.full(length, first + number), "id": first + number}
        for number, length in enumerate(lengths)
    ]
    return yogadl.from_source(records, fingerprint=name, spec=SPEC)


def pieces(record):
    return [{"tokens": record["tokens"][:1]} for _ in record["tokens"]]


VIEWS = {
    "packed": lambda ref: ref.packed(12, fields="tokens"),
    "bucketed": lambda ref: ref.bucketed("tokens", tokens=20),
    "grouped": lambda ref: ref.grouped(lambda record: len(record["tokens"]), records=5),
    "chunks": lambda ref: ref.chunks("tokens", 8),
    "flat_map": lambda ref: ref.flat_map(pieces),
    "mapped": lambda ref: ref.packed(12, fields="tokens").map(dict),
    "fields": lambda ref: ref.flat_map(pieces).fields("tokens"),
    "packed_pieces": lambda ref: ref.flat_map(pieces, spec={"tokens": Leaf("int64", (None,))}).packed(
        12, fields="tokens"
    ),
    "epoch": lambda ref: ref.packed(12, fields="tokens").at(3),
    "mix": lambda ref: yogadl.mix({"a": (ref.packed(12, fields="tokens"), 1)}),
    "joined": lambda ref: yogadl.concat([ref.chunks("tokens", 8), ref.chunks("tokens", 8)]),
    "selected": lambda ref: ref.chunks("tokens", 8).select(range(20)),
}
# As many values, and so as many rows of most kinds; all documents' are others.
SAME_ROWS = [2, 1, *LENGTHS[2:]]


def counts(rows):
    return Counter(int(token) for row in rows for token in np.ravel(row["tokens"]) if token)


def saved(ref, delivered=5):
    """Return a cursor as a file has it."""
    return json.loads(json.dumps(ref.stream(shuffle=True, shuffle_seed=4).cursor(delivered)))


@pytest.mark.parametrize("view", VIEWS)
def test_other_lengths_are_refused_though_there_are_as_many_rows(view):
    make = VIEWS[view]
    assert sum(SAME_ROWS) == sum(LENGTHS)
    old, new = make(of(LENGTHS, "old")), make(of(SAME_ROWS, "new"))
    assert len(old) == len(new)
    for rebind in (False, True):
        with pytest.raises(
            CursorError, match="begin an epoch of this data: open the stream without a"
        ) as caught:
            new.stream(shuffle=True, shuffle_seed=4, cursor=saved(old), rebind=rebind)
        assert ("rebind=True does not help" in str(caught.value)) == rebind
        assert "by rebind=True" not in str(caught.value)
    stream = new.stream(shuffle=True, shuffle_seed=4)
    for each in (stream, stream.batch(2), iter(stream), iter(stream.batch(2))):
        with pytest.raises(CursorError, match="does not help"):
            each.load_state_dict(saved(old), rebind=True)


@pytest.mark.parametrize("view", VIEWS)
def test_equal_lengths_are_accepted_and_all_records_of_the_other_data_come(view):
    make = VIEWS[view]
    old, new = make(of(LENGTHS, "old")), make(of(LENGTHS, "new"))
    options = {"shuffle": True, "shuffle_seed": 4, "cursor": saved(old)}
    with pytest.raises(CursorError, match="or accept other data of equal length by rebind=True"):
        new.stream(**options)
    rest = counts(new.stream(**options, rebind=True))
    first = iter(old.stream(shuffle=True, shuffle_seed=4))
    assert counts(next(first) for _ in range(5)) + rest == counts(old.stream(shuffle=True, shuffle_seed=4))


@pytest.mark.parametrize("view", VIEWS)
def test_a_cursor_of_before_goes_on_with_its_data_and_is_not_rebound(view):
    make = VIEWS[view]
    old, new = make(of(LENGTHS, "old")), make(of(LENGTHS, "new"))
    cursor = saved(old)
    assert isinstance(cursor.pop("rows"), str)
    options = {"shuffle": True, "shuffle_seed": 4, "cursor": cursor}
    assert old.stream(**options).start == (0, 5)
    with pytest.raises(CursorError, match="which a cursor of an earlier yogadl does not tell"):
        new.stream(**options, rebind=True)


@pytest.mark.parametrize(
    "view",
    [lambda ref: ref, lambda ref: ref.map(dict), lambda ref: ref.select(range(50)), lambda ref: ref[:9]],
)
def test_cursors_of_single_records_have_no_rows_and_are_rebound(view):
    cursor = saved(view(of(LENGTHS, "old")))
    assert "rows" not in cursor
    new = view(of(SAME_ROWS, "new"))
    assert new.stream(shuffle=True, shuffle_seed=4, cursor=cursor, rebind=True).start == (0, 5)


def test_rows_and_single_records_are_not_rebound_to_each_other():
    rows = of(LENGTHS, "old").chunks("tokens", 8)
    plain = of(LENGTHS[: len(rows)], "new")
    for one, other in ((rows, plain), (plain, rows)):
        with pytest.raises(CursorError, match="does not help"):
            one.stream(shuffle=True, shuffle_seed=4, cursor=saved(other), rebind=True)


def test_rows_that_are_no_text_are_damage():
    packed = VIEWS["packed"](of(LENGTHS, "old"))
    with pytest.raises(CursorError, match="the cursor's 'rows' is 3, not a string"):
        packed.stream(shuffle=True, shuffle_seed=4, cursor={**saved(packed), "rows": 3})
