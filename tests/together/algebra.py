"""Views of references as a user writes them, and the same views of plain lists, to compare with.

A view is made by a function of its name below, of a reference with its rows; a `Dice` chooses the arguments.
"""

import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from windows import STEPS, TOKENS, windows

import yogadl
from yogadl import Leaf


class Array(NamedTuple):
    """An array or a number, as what can be compared."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


def array(dtype, values, shape=None):
    return Array(np.dtype(dtype).str, (len(values),) if shape is None else shape, tuple(values))


def number(dtype, value):
    return array(dtype, [value], ())


def plain(value):
    """Return a record, or a part of one, without arrays."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return Array(value.dtype.str, value.shape, tuple(np.ravel(value).tolist()))
    return value


def plain_rows(tree):
    """Return the records of a batch, each without arrays."""
    if isinstance(tree, dict):
        columns = [plain_rows(column) for column in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*columns, strict=True)]
    return [plain(each) for each in tree]


def rows_of_pickles(pickles, options):
    """Return the records of epochs of streams of pickled references, as another process reads them."""
    refs = map(pickle.loads, pickles)
    return [[plain(each) for each in ref.stream(**options).at(1)] for ref in refs]


class Dice:
    """Chooses numbers, and notes them, so that the same can be built again of another base."""

    def __init__(self, roll: Callable[[int, int], int], say: Callable[[str], None]) -> None:
        self._roll = roll
        self.say = say
        self.log: list[int] = []

    def __repr__(self):
        return f"<Dice: {self.log}>"

    def number(self, low, high):
        self.log.append(self._roll(low, high))
        return self.log[-1]

    def numbers(self, low, high, most):
        return [self.number(low, high) for _ in range(self.number(0, most))]

    def flag(self):
        return bool(self.number(0, 1))

    def pick(self, options):
        return options[self.number(0, len(options) - 1)]


def same_dice(dice):
    """Return dice that choose what others have chosen."""
    numbers = iter(dice.log)
    return Dice(lambda _, __: next(numbers), dice.say)


@dataclass(frozen=True, repr=False)
class Made:
    """A reference, its records, and the expression that makes it.

    Attributes:
        ref: The reference.
        rows: Its records.
        kind: "document", "window", "chunk", "row" or "batch", which are dicts; "array" or "json".
        names: The fields; empty if a record is a single value.
        code: The expression.
        bases: The references that views can be made of, by name.
        has_exact_plan: Whether the requests for its records can be told exactly.
        firsts: Where the version that added each record begins; None if records are of several versions.
    """

    ref: Any
    rows: list[Any]
    kind: str
    names: tuple[str, ...]
    code: str
    bases: "dict[str, Made]"
    has_exact_plan: bool = False
    firsts: list[int] | None = None

    def __repr__(self):
        return self.code

    def __len__(self):
        return len(self.rows)

    def rows_at(self, _, __):
        return self.rows

    def order(self, program, seed, epoch, is_shuffled):
        return shuffled(program, len(self), seed, epoch) if is_shuffled else list(range(len(self)))

    def then(self, ref, rows, code, **changes):
        changes = {"has_exact_plan": False, "firsts": None} | changes
        return replace(self, ref=ref, rows=rows, code=f"{self.code}{code}", **changes)

    def chosen(self, ref, places, code, **changes):
        """Return records that are those at some places, or made of one each."""
        firsts = None if self.firsts is None else [self.firsts[place] for place in places]
        return self.then(ref, [self.rows[place] for place in places], code, firsts=firsts, **changes)


@dataclass(frozen=True, repr=False)
class Drawn:
    """A reference to rows that each epoch draws anew; `rows_at` has those of an epoch and a seed."""

    ref: Any
    rows_at: Callable[[int, int], list[Any]]
    kind: str
    names: tuple[str, ...]
    code: str
    bases: dict[str, Made]
    has_exact_plan: bool = False
    ranks: int = 1

    def __repr__(self):
        return self.code

    def __len__(self):
        return len(self.ref)

    def order(self, program, seed, epoch, is_shuffled):
        if self.ranks == 1 or not is_shuffled:
            return Made.order(self, program, seed, epoch, is_shuffled)
        order = self.ref.stream(shuffle=True).cursor(0)["order"]
        assert (order["name"], order["size"]) == ("steps", self.ranks)
        sizes = len(self), order["steps"], self.ranks
        return [program["steps_index"](place, *sizes, seed, epoch) for place in range(len(self))]

    def at(self, dice):
        epoch, seed = dice.number(0, 2), dice.number(0, 5)
        code = f"{self.code}.at({epoch}, seed={seed})"
        rows = self.rows_at(epoch, seed)
        return Made(self.ref.at(epoch, seed=seed), rows, self.kind, self.names, code, self.bases)


@dataclass(frozen=True, repr=False)
class Mixed:
    """A mix, and the rows of its parents, one after another."""

    ref: Any
    parents: list[Made]
    weights: list[int]
    at_end: str
    seed: int
    code: str
    has_exact_plan: bool = False

    def __repr__(self):
        return self.code

    def __len__(self):
        return len(self.ref)

    def rows_at(self, _, __):
        return [row for parent in self.parents for row in parent.rows]

    def order(self, program, seed, epoch, is_shuffled):
        lengths = [len(parent) for parent in self.parents]
        count = mix_length(program, self.weights, lengths, self.at_end)
        key = program["derive_key"](int.from_bytes(b"mix-1", "big"), self.seed, epoch)
        owners = [n for n, most in enumerate(program["apportion"](count, self.weights)) for _ in range(most)]
        places = by_key(program, program["absorb"](key, 0), count)
        taken, found = [0] * len(lengths), []
        for _, own in sorted(zip(places, owners, strict=True)):
            again, turn = divmod(taken[own], lengths[own])
            taken[own] += 1
            if is_shuffled:
                tag = int.from_bytes(b"again-1", "big")
                own_seed = program["derive_key"](tag, seed, again) if again else seed
                turn = shuffled(program, lengths[own], own_seed, epoch)[turn]
            found.append(sum(lengths[:own]) + turn)
        return found


def mix_length(program, weights, lengths, at_end):
    """Return how many records a mix has, by trial; less than one run of 4,096."""
    stops = at_end == "stop"
    for count in reversed(range(sum(lengths) + 1)) if stops else itertools.count():
        counts = program["apportion"](count, weights)
        if all(n <= most if stops else n >= most for n, most in zip(counts, lengths, strict=True)):
            return count
    raise AssertionError


def shuffled(program, count, seed, epoch):
    """Return the global shuffle, by the program of the page on the order."""
    key = program["derive_key"](int.from_bytes(b"global-1", "big"), seed, epoch)
    return by_key(program, key, count)


def by_key(program, key, count):
    return sorted(range(count), key=lambda place: program["stream"](key, place))


# Functions of records, and the same of rows.


def weight(value):
    """Return a number that depends on all that a record has; of rows, the same."""
    if isinstance(value, dict):
        return sum(map(weight, value.values()))
    if isinstance(value, np.ndarray | np.generic):
        return int(np.sum(value))
    if isinstance(value, Array):
        return int(sum(value.values))
    if isinstance(value, list):
        return sum(map(weight, value))
    return len(value) if isinstance(value, str) else int(value or 0)


def is_odd(record):
    return weight(record) % 2 == 1


def raised(record):
    """Add 1 to each number of a record."""
    if isinstance(record, dict):
        return {name: raised(value) for name, value in record.items()}
    is_number = isinstance(record, np.ndarray | np.generic) and record.dtype != bool
    return record + 1 if is_number else record


def raised_row(row):
    if isinstance(row, Array):
        return row if row.dtype == "|b1" else row._replace(values=tuple(value + 1 for value in row.values))
    return {name: raised_row(value) for name, value in row.items()} if isinstance(row, dict) else row


def refusing(record):
    if weight(record) % 3 == 0:
        raise ValueError(f"a weight of {weight(record)}")
    return raised(record)


def remade(record):
    """Make a document of any record."""
    return {"id": np.int64(weight(record)), "tokens": np.arange(weight(record) % 4, dtype=np.int32)}


def remade_row(row):
    return {"id": number("i8", weight(row)), "tokens": array("i4", range(weight(row) % 4))}


REMADE = yogadl.from_source(
    [{"id": 0, "tokens": np.zeros(0, np.int32)}], spec={"tokens": Leaf("int32", (None,))}
).spec


def copy_count(record):
    return weight(record) % 3


def copies(record):
    return [record] * copy_count(record)


# The views.


def selected(made, dice):
    count = len(made)
    if dice.flag():
        given = [dice.flag() for _ in made.rows]
        chosen = [place for place, is_chosen in enumerate(given) if is_chosen]
        ref, code = made.ref.select(np.array(given, np.bool_)), f".select(np.array({given}))"
    else:
        chosen = dice.numbers(-count, count - 1, 12) if count else []
        ref, code = made.ref.select(chosen), f".select({chosen})"
    return made.chosen(ref, chosen, code, has_exact_plan=made.has_exact_plan)


def sliced(made, dice):
    most = len(made) + 2
    start, stop = (dice.pick([None, dice.number(-most, most)]) for _ in range(2))
    part = slice(start, stop, dice.pick([None, -1, 2, -3]))
    code = ":".join("" if each is None else str(each) for each in (part.start, part.stop, part.step))
    places = range(len(made))[part]
    return made.chosen(made.ref[part], places, f"[{code}]", has_exact_plan=made.has_exact_plan)


def with_fields(made, names, ref=None):
    rows = [{name: row[name] for name in names} for row in made.rows]
    code = f".fields({', '.join(map(repr, names))})"
    same = {"has_exact_plan": made.has_exact_plan, "firsts": made.firsts}
    return made.then((ref or made.ref).fields(*names), rows, code, names=tuple(names), **same)


def projected(made, dice):
    names = [name for name in made.names if dice.flag()] or [dice.pick(made.names)]
    return with_fields(made, names[::-1] if dice.flag() else names)


def filtered(made, dice):
    if "id" in made.names and dice.flag():
        places = [place for place, row in enumerate(made.rows) if is_odd(row["id"])]
        return made.chosen(made.ref.filter(is_odd, fields=["id"]), places, '.filter(is_odd, fields=["id"])')
    places = [place for place, row in enumerate(made.rows) if is_odd(row)]
    return made.chosen(made.ref.filter(is_odd), places, ".filter(is_odd)")


def mapped(made, dice):
    form = dice.pick(["raised", "refusing", "remade"])
    if form == "remade":
        ref = made.ref.map(remade, spec=REMADE)
        same = {"kind": "document", "names": ("id", "tokens"), "firsts": made.firsts}
        return made.then(ref, list(map(remade_row, made.rows)), ".map(remade, spec=REMADE)", **same)
    places = [place for place, row in enumerate(made.rows) if form == "raised" or weight(row) % 3]
    options = {} if form == "raised" else {"on_error": "skip"}
    ref = made.ref.map(refusing if options else raised, spec=made.ref.spec, **options)
    found = made.chosen(
        ref, places, '.map(refusing, spec=..., on_error="skip")' if options else ".map(raised, spec=...)"
    )
    return replace(found, rows=list(map(raised_row, found.rows)))


def flat_mapped(made, dice):
    places = [place for place, row in enumerate(made.rows) for _ in range(copy_count(row))]
    options = {"count": copy_count} if dice.flag() else {}
    ref = made.ref.flat_map(copies, spec=made.ref.spec, **options)
    code = ", count=copy_count" * len(options)
    return made.chosen(ref, places, f".flat_map(copies{code}, spec=...)")


def windowed(made, _):
    """Windows, as a view that the library does not have."""
    names = [name for name in ("id", "pair", "tokens") if name in made.names]
    ref = windows(made.ref, [row["tokens"].shape[0] for row in made.rows])
    rows = [
        {name: window_of(name, [row[name] for row in made.rows[first : first + STEPS]]) for name in names}
        for first in range(len(made) - STEPS + 1)
    ]
    return replace(made.then(ref, rows, "", kind="window", names=tuple(names)), code=f"windows({made.code})")


def timed(made, dice):
    """Windows of time: of pairs those of the records around the anchor that have the same text."""
    within = "text" if "text" in made.names and dice.flag() else None
    offsets, stride = sorted({dice.number(-3, 3) for _ in range(3)}), dice.number(1, 3)
    first = dice.number(0, 1)
    texts = [row["text"] if within else "" for row in made.rows]
    rows = []
    for text in dict.fromkeys(texts):
        own = [row for row, its in zip(made.rows, texts, strict=True) if its == text]
        for place in range(-(-first // stride) * stride, len(own), stride):
            places = [place + offset for offset in offsets]
            pairs = [own[min(max(one, 0), len(own) - 1)]["pair"].values for one in places]
            pair = array("f4", itertools.chain(*pairs), (len(offsets), 2))
            masks = array("?", [not 0 <= one < len(own) for one in places])
            rows.append(own[place] | {"pair": pair, "pair_is_pad": masks})
    if made.rows and not rows:
        return made
    ref = made.ref.windows({"pair": offsets}, within, stride=stride, drop_first=first)
    code = f'.windows({{"pair": {offsets}}}, {within!r}, stride={stride}, drop_first={first})'
    return made.then(ref, rows, code, kind="timed", names=(*made.names, "pair_is_pad"))


def window_of(name, values):
    if name == "tokens":
        return array("i4", [token for value in values for token in value.values[:TOKENS]])
    shape = STEPS, *values[0].shape
    return array(values[0].dtype, itertools.chain(*(value.values for value in values)), shape)


def joined(made, dice):
    other = made.bases[dice.pick(["local", "list", "ranged"])]
    is_alike = made.kind == "document" and set(made.names) <= set(other.names)
    if is_alike and dice.flag():
        other = sliced(with_fields(other, made.names), dice)
    else:
        other = sliced(made, dice)
    parents = [other, made] if dice.flag() else [made, other]
    code = f"yogadl.concat([{parents[0].code}, {parents[1].code}])"
    rows = parents[0].rows + parents[1].rows
    joint = made.then(yogadl.concat([each.ref for each in parents]), rows, "")
    return replace(joint, code=code)


def divided(made, dice, program):
    """One of three shares, by the program of the page on the order."""
    seed, share = dice.number(0, 9), dice.number(0, 2)
    form = dice.pick(["plain", "by", "key"])
    values = [row["id"].values[0] for row in made.rows] if _has_ids(made) else None
    if form == "key" and values is not None:
        options: dict[str, Any] = {"key": "id"}
        places = [program["key_share"](value, [5, 3, 2], seed) for value in values]
        chosen = [place for place, each in enumerate(places) if each == share]
    else:
        options = {"grows": made.firsts is not None and dice.flag()}
        of_values = values if form == "by" else None
        options |= {"by": "id"} if of_values is not None else {}
        firsts = made.firsts if options["grows"] else [0] * len(made)
        chosen = share_of(program, firsts, seed, share, of_values)
    ref = made.ref.split(0.5, 0.3, seed=seed, **options)[share]
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return made.chosen(ref, chosen, f".split(0.5, 0.3, seed={seed}{given})[{share}]")


def share_of(program, firsts, seed, share, values):
    """Return a share's records; those of each version, which begins at one of `firsts`, are divided alone."""
    chosen = []
    for first in sorted(set(firsts)):
        places = [place for place, each in enumerate(firsts) if each == first]
        own = None if values is None else [values[place] for place in places]
        begins = (first,) if first else ()
        shares = program["split_shares"](len(places), [5, 3, 2], seed, own, begins)
        chosen += [places[place] for place in shares[share]]
    return chosen


def _has_ids(made):
    return made.kind == "document" and "id" in made.names


def chunked(made, dice):
    size = dice.number(1, 5)
    is_single = made.kind == "array"
    pad = dice.pick([None, -1])
    segments = None if is_single else dice.pick([None, "document"])
    field = None if is_single else "tokens"
    options = {"drop_remainder": pad is None, "pad": pad, "segments": segments}
    values = [row if is_single else row["tokens"] for row in made.rows]
    flat = [(token, n) for n, value in enumerate(values) for token in value.values]
    rows = []
    for start in range(0, len(flat), size):
        piece = flat[start : start + size]
        missing = size - len(piece)
        if missing and pad is None:
            break
        seen: dict[int, int] = {}
        tokens = array("i4", [token for token, _ in piece] + [pad] * missing)
        numbers = array("i4", [seen.setdefault(n, len(seen)) for _, n in piece] + [-1] * missing)
        rows.append(tokens if is_single else {"tokens": tokens, **({segments: numbers} if segments else {})})
    names = () if is_single else ("tokens", *([segments] if segments else []))
    code = f".chunks({field!r}, {size}, drop_remainder={pad is None}, pad={pad}, segments={segments!r})"
    kind = "array" if is_single else "chunk"
    return made.then(made.ref.chunks(field, size, **options), rows, code, kind=kind, names=names)


# Views whose rows each epoch draws anew.


def packed(made, dice):
    capacity, long = dice.number(1, 24), dice.pick(["cut", "drop"])
    both = ["tokens", "document"] if made.kind == "chunk" and "document" in made.names else ["tokens"]
    fields = both[: dice.number(1, len(both))]
    options = {
        "fields": fields,
        "cu_seqlens": dice.pick(["bounds", None]),
        "segments": dice.pick(["segments", None]),
        "positions": dice.pick(["positions", None]),
        "mask": dice.pick(["mask", fields[-1], None] if len(fields) > 1 else ["mask", None]),
        "long": long,
        "round_to": dice.pick([1, 3]),
        "shuffle_within": dice.flag(),
        "values": [name for name in ("id", "notes") if made.kind == "document" and name in made.names],
        "pad": {"tokens": -1},
    }
    ref = made.ref.packed(capacity, **as_arguments(options))

    def rows_at(epoch, seed):
        found = ref.at(epoch, seed=seed)
        documents = [found.documents(n) for n in range(len(found))]
        assert sorted(itertools.chain(*documents)) == pieces_of(made.rows, capacity, long)
        most = max(map(len, documents), default=0)
        return [packed_row(made.rows, pieces, capacity, options, most) for pieces in documents]

    extra = [options[name] for name in ("segments", "positions", "mask", "cu_seqlens") if options[name]]
    given = "".join(f", {name}={value!r}" for name, value in as_arguments(options).items())
    code = f"{made.code}.packed({capacity}{given})"
    names = (*fields, *(name for name in extra if name not in fields), *options["values"])
    return Drawn(ref, rows_at, "row", names, code, made.bases)


def as_arguments(options):
    """Return the arguments of `packed`, of which some are entries of one value."""
    extra = {name: value for name, value in options.items() if name in vars(yogadl.PackFields())}
    others = {name: value for name, value in options.items() if name not in extra}
    return {**others, "extra": yogadl.PackFields(**extra)}


def pieces_of(rows, capacity, long):
    """Return each piece that comes once an epoch, in order."""
    found = []
    for record, row in enumerate(rows):
        length = row["tokens"].shape[0]
        if long == "cut" or length <= capacity:
            starts = range(0, length, capacity)
            found += [(record, start, min(start + capacity, length)) for start in starts]
    return found


def packed_row(rows, pieces, capacity, options, most=0):
    """Return the row of some pieces, token by token; rows have `most` pieces or fewer."""
    segments, positions, mask, bounds = [], [], [], [0]
    packed = {name: [] for name in options.get("fields", ["tokens"])}
    for segment, (record, start, stop) in enumerate(pieces, 1):
        for name, values in packed.items():
            values += rows[record][name].values[start:stop]
        segments += [segment] * (stop - start)
        positions += range(start, stop)
        mask += [True] * (stop - start - 1) + [False]
        bounds += [bounds[-1] + stop - start]
    missing = capacity - len(mask)
    assert missing >= 0
    if options["mask"] in packed:
        values = packed[options["mask"]]
        values[:] = [value * has_next for value, has_next in zip(values, mask, strict=True)]
    row = {name: array("i4", [*packed[name], *[-(name == "tokens")] * missing]) for name in packed}
    fields = {"segments": segments, "positions": positions, "mask": mask}
    for name, values in fields.items():
        if options[name] and options[name] not in packed:
            padding = False if name == "mask" else 0
            row[name] = array("?" if name == "mask" else "i4", values + [padding] * missing)
    if options.get("cu_seqlens"):
        row[options["cu_seqlens"]] = array("i4", bounds + bounds[-1:] * (most + 1 - len(bounds)))
    for name in options["values"]:
        values = [rows[record][name] for record, _, _ in pieces]
        row[name] = array("i8", [value.values[0] for value in values]) if name == "id" else values
    return row


def bucketed(made, dice):
    made = (
        with_fields(made, [name for name in made.names if name != "text"]) if "text" in made.names else made
    )
    tokens, lengths = dice.number(1, 30), dice.pick(["lengths", None])
    options = {
        "tokens": tokens,
        "max_records": dice.pick([None, 2]),
        "lengths": lengths,
        "pad": {"tokens": -1},
        "pad_to": dice.pick(["longest", "class"]),
        "classes": dice.pick([None, 1, 3]),
        "ranks": dice.pick([1, 2, 3]),
    }
    ref = made.ref.bucketed("tokens", **options)

    def rows_at(epoch, seed):
        found = ref.at(epoch, seed=seed)
        documents = [found.documents(n) for n in range(len(found))]
        every = [(record, 0, row["tokens"].shape[0]) for record, row in enumerate(made.rows)]
        assert sorted(itertools.chain(*documents)) == every
        widths = [max(stop for _, _, stop in some) for some in documents]
        if options["pad_to"] == "class":
            lengths_of_all = {stop for _, _, stop in every}
            made_widths = [plain(each)["tokens"].shape[1] for each in found]
            widths = class_widths(widths, made_widths, lengths_of_all, options)
        check_batches(documents, widths, options)
        return [
            bucketed_row([made.rows[each.record] for each in some], width, lengths)
            for some, width in zip(documents, widths, strict=True)
        ]

    given = "".join(f", {name}={value!r}" for name, value in options.items())
    names = (*made.names, *([lengths] if lengths else []))
    code = f'{made.code}.bucketed("tokens"{given})'
    return Drawn(ref, rows_at, "batch", names, code, made.bases, ranks=options["ranks"])


def check_batches(documents, widths, options):
    """Check the bounds of batches, and that each rank has as many, where there are enough records."""
    for some, width in zip(documents, widths, strict=True):
        assert len(some) == 1 or len(some) * width <= options["tokens"]
        assert len(some) <= (options["max_records"] or len(some))
    ranks = options["ranks"]
    assert len(documents) % ranks == 0 or sum(len(some) for some in documents) < 2 * len(documents) + ranks


def class_widths(longest, widths, lengths, options):
    """Return how long batches are, once that is found to be the longest record of one of few classes.

    Batches are numbered by class, of several ranks those of whole steps first.
    """
    budget = options["tokens"]
    assert all(width >= most for width, most in zip(widths, longest, strict=True))
    assert all(width == most for width, most in zip(widths, longest, strict=True) if most > budget)
    classes = {width for width in widths if width <= budget}
    assert classes <= lengths, "a class is as long as its longest record, which may come in the next one's"
    assert len(classes) <= (options["classes"] or len(classes))
    if options["ranks"] == 1:
        assert widths[: len(widths) - sum(most > budget for most in longest)] == sorted(
            width for width in widths if width <= budget
        )
    return widths


def bucketed_row(rows, width=0, lengths=None):
    """Return the batch of some rows: fields stacked, those that vary padded to the longest."""
    batch = {
        name: stacked([row[name] for row in rows], -(name == "tokens"), width * (name == "tokens"))
        for name in rows[0]
    }
    if lengths is None:
        return batch
    return batch | {lengths: array("i4", [row["tokens"].shape[0] for row in rows])}


def shapes_of(record):
    """Return all sizes of a record's arrays."""
    return tuple(size for value in record.values() for size in getattr(value, "shape", ()))


def grouped(made, dice):
    names = [name for name in made.names if name != "text"]
    is_by_id = _has_ids(made) and dice.flag()
    made = with_fields(made, [name for name in names if not is_by_id or name != "tokens"])
    most, ranks = dice.number(1, 4), dice.pick([1, 2, 3])
    values = [row["id"].values[0] if is_by_id else shapes_of(row) for row in made.rows]
    records = {value: most + n % 2 for n, value in enumerate(dict.fromkeys(values))} if dice.flag() else most
    options = {"records": records, "ranks": ranks}
    if not is_by_id and dice.flag():
        options["fields"] = names
    ref = made.ref.grouped("id" if is_by_id else shapes_of, **options)

    def rows_at(epoch, seed):
        found = ref.at(epoch, seed=seed)
        batches = [[each.record for each in found.documents(n)] for n in range(len(found))]
        assert sorted(itertools.chain(*batches)) == list(range(len(made)))
        short = 0
        for some in batches:
            (value,) = {values[record] for record in some}
            size = records[value] if isinstance(records, dict) else records
            assert 1 <= len(some) <= size
            short += len(some) < size
        assert short <= len(set(values)) or ranks > 1
        assert len(batches) % ranks == 0 or len(made) < 2 * len(batches) + ranks
        return [bucketed_row([made.rows[record] for record in some]) for some in batches]

    given = "".join(f", {name}={value!r}" for name, value in options.items())
    code = f"{made.code}.grouped({repr('id') if is_by_id else 'shapes_of'}{given})"
    return Drawn(ref, rows_at, "batch", made.names, code, made.bases, ranks=ranks)


def stacked(values, pad, least):
    if not isinstance(values[0], Array):
        return values  # json values
    if not values[0].shape:
        return array(values[0].dtype, [value.values[0] for value in values])
    longest, inner = max(least, *(value.shape[0] for value in values), 0), values[0].shape[1:]
    size = longest * int(np.prod(inner))
    padded = [[*value.values, *[pad] * (size - len(value.values))] for value in values]
    return array(values[0].dtype, itertools.chain(*padded), (len(values), longest, *inner))


def sampled(made, dice, program):
    count = dice.pick([None, 1, 7])
    weights = [1] * len(made)
    form = dice.pick(["alike", "weights", "field", "by"])
    options: dict[str, Any] = {}
    if form == "weights":
        weights = [dice.number(0, 3) for _ in made.rows]
        if not any(weights):
            weights[-1] = 2.5
        options = {"weights": weights}
    elif form == "field" and _has_ids(made):
        ids = [row["id"].values[0] for row in made.rows]
        weights, options = (ids, {"weights": "id"}) if any(ids) else (weights, {})
    elif form == "by" and made.kind == "document":
        name = dice.pick([name for name in made.names if name in ("id", "text")] or [None])
        values = [] if name is None else [repr(row[name]) for row in made.rows]
        weights = [1 / values.count(value) for value in values] or weights
        options = {} if name is None else {"by": name}
    whole = program["whole_weights"](weights)
    ref = made.ref.sampled(records=count, **options)

    def rows_at(epoch, seed):
        draw = program["draw_of"](seed, epoch, len(ref))
        return [made.rows[program["sample_index"](n, draw, whole)] for n in range(len(ref))]

    given = "".join(f", {name}={value!r}" for name, value in options.items())
    code = f"{made.code}.sampled(records={count}{given})"
    return Drawn(ref, rows_at, made.kind, made.names, code, made.bases)


def redone(drawn, dice):
    """Map drawn records, or leave out fields."""
    form = dice.pick(["", "raised", "fields"])
    if form == "raised":
        ref, code = drawn.ref.map(raised, spec=drawn.ref.spec), ".map(raised, spec=...)"

        def rows_at(epoch, seed):
            return [raised_row(row) for row in drawn.rows_at(epoch, seed)]

        return replace(drawn, ref=ref, rows_at=rows_at, code=drawn.code + code)
    if form == "fields" and drawn.names:
        names = [name for name in drawn.names if dice.flag()] or [drawn.names[0]]
        names = names[::-1] if dice.flag() else names

        def some_rows_at(epoch, seed):
            return [{name: row[name] for name in names} for row in drawn.rows_at(epoch, seed)]

        code = f"{drawn.code}.fields({', '.join(map(repr, names))})"
        return replace(
            drawn, ref=drawn.ref.fields(*names), rows_at=some_rows_at, code=code, names=tuple(names)
        )
    return drawn


def mixed(made, dice):
    parents = [made, sliced(made, dice)]
    if not dice.flag() or not len(parents[1]):
        parents[1] = made
    weights = [dice.number(1, 3) for _ in parents]
    seed, at_end = dice.number(0, 5), dice.pick(["stop", "repeat"])
    pairs = {f"part {n}": (parent.ref, weights[n]) for n, parent in enumerate(parents)}
    shown = ", ".join(f'"part {n}": ({parent.code}, {weights[n]})' for n, parent in enumerate(parents))
    code = f'yogadl.mix({{{shown}}}, seed={seed}, at_end="{at_end}")'
    factor = np.gcd.reduce(weights)
    whole = [int(one // factor) for one in weights]
    return Mixed(yogadl.mix(pairs, seed=seed, at_end=at_end), parents, whole, at_end, seed, code)


PLAIN = {"select": selected, "slice": sliced, "fields": projected, "filter": filtered, "map": mapped,
         "flat_map": flat_mapped, "concat": joined, "chunks": chunked, "split": divided,
         "windows": windowed, "timed": timed}  # fmt: skip
DRAWN = {"packed": packed, "bucketed": bucketed, "grouped": grouped, "sampled": sampled}
VIEWS = (*PLAIN, *DRAWN)
MOST_ROWS = 60


def is_possible(view, made):
    """Return whether the library has this view of these records, and they do not grow too many."""
    if view in ("concat", "flat_map"):
        return len(made) <= MOST_ROWS
    if view == "fields":
        return bool(made.names)
    if view in ("chunks", "packed", "bucketed"):
        are_dicts = made.kind in ("document", "window", "chunk", "row")
        return (are_dicts and "tokens" in made.names) or (view == "chunks" and made.kind == "array")
    if view == "grouped":
        return made.kind in ("document", "window", "chunk", "row", "batch") and any(
            name != "text" for name in made.names
        )
    if view == "windows":
        return made.kind in ("document", "window") and {"id", "tokens"} <= set(made.names)
    if view == "timed":
        return made.kind == "document" and "pair" in made.names
    return len(made) > 0 if view == "sampled" else True


def drawn_view(view, made, dice, program):
    """Return a view whose records each epoch draws anew."""
    found = sampled(made, dice, program) if view == "sampled" else DRAWN[view](made, dice)
    return redone(found, dice)


def viewed(view, made, dice, program):
    """Return a view of a name, with random access: of drawn records those of one epoch."""
    if view in DRAWN:
        return drawn_view(view, made, dice, program).at(dice)
    return divided(made, dice, program) if view == "split" else PLAIN[view](made, dice)


def built(base, views, dice, program, end="plain"):
    """Return views of views of a base, those that are possible; at the end records drawn anew, or a mix."""
    made = base
    for view in views:
        if is_possible(view, made):
            made = viewed(view, made, dice, program)
    if end in DRAWN and is_possible(end, made):
        return drawn_view(end, made, dice, program)
    return mixed(made, dice) if end == "mix" and len(made) else made
