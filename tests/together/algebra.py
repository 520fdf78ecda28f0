"""Views of references as a user writes them, and the same views of plain lists, to compare with.

A view is made by a function of its name below, of a reference with its rows; a `Dice` chooses the arguments.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

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
        kind: "document", "chunk", "row" or "batch", which are dicts; "array" or "json".
        names: The fields; empty if a record is a single value.
        code: The expression.
        bases: The references that views can be made of, by name.
        has_exact_plan: Whether the requests for its records can be told exactly.
    """

    ref: Any
    rows: list[Any]
    kind: str
    names: tuple[str, ...]
    code: str
    bases: "dict[str, Made]"
    has_exact_plan: bool = False

    def __repr__(self):
        return self.code

    def __len__(self):
        return len(self.rows)

    def rows_at(self, _, __):
        return self.rows

    def order(self, program, seed, epoch, is_shuffled):
        return shuffled(program, len(self), seed, epoch) if is_shuffled else list(range(len(self)))

    def then(self, ref, rows, code, **changes):
        changes.setdefault("has_exact_plan", False)
        return replace(self, ref=ref, rows=rows, code=f"{self.code}{code}", **changes)


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

    def __repr__(self):
        return self.code

    def __len__(self):
        return len(self.ref)

    order = Made.order

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
    if dice.flag():
        mask = [dice.flag() for _ in made.rows]
        rows = [row for row, is_chosen in zip(made.rows, mask, strict=True) if is_chosen]
        return made.then(
            made.ref.select(np.array(mask, np.bool_)),
            rows,
            f".select(np.array({mask}))",
            has_exact_plan=made.has_exact_plan,
        )
    count = len(made)
    chosen = dice.numbers(-count, count - 1, 12) if count else []
    return made.then(
        made.ref.select(chosen),
        [made.rows[n] for n in chosen],
        f".select({chosen})",
        has_exact_plan=made.has_exact_plan,
    )


def sliced(made, dice):
    most = len(made) + 2
    start, stop = (dice.pick([None, dice.number(-most, most)]) for _ in range(2))
    part = slice(start, stop, dice.pick([None, -1, 2, -3]))
    code = ":".join("" if each is None else str(each) for each in (part.start, part.stop, part.step))
    return made.then(made.ref[part], made.rows[part], f"[{code}]", has_exact_plan=made.has_exact_plan)


def with_fields(made, names, ref=None):
    rows = [{name: row[name] for name in names} for row in made.rows]
    code = f".fields({', '.join(map(repr, names))})"
    is_exact = made.has_exact_plan
    return made.then(
        (ref or made.ref).fields(*names), rows, code, names=tuple(names), has_exact_plan=is_exact
    )


def projected(made, dice):
    names = [name for name in made.names if dice.flag()] or [dice.pick(made.names)]
    return with_fields(made, names[::-1] if dice.flag() else names)


def filtered(made, dice):
    rows = [row for row in made.rows if is_odd(row)]
    if "id" in made.names and dice.flag():
        rows = [row for row in made.rows if is_odd(row["id"])]
        return made.then(made.ref.filter(is_odd, fields=["id"]), rows, '.filter(is_odd, fields=["id"])')
    return made.then(made.ref.filter(is_odd), rows, ".filter(is_odd)")


def mapped(made, dice):
    form = dice.pick(["raised", "refusing", "remade"])
    if form == "remade":
        ref = made.ref.map(remade, spec=REMADE)
        rows = [remade_row(row) for row in made.rows]
        return made.then(ref, rows, ".map(remade, spec=REMADE)", kind="document", names=("id", "tokens"))
    if form == "refusing":
        rows = [raised_row(row) for row in made.rows if weight(row) % 3]
        ref = made.ref.map(refusing, spec=made.ref.spec, on_error="skip")
        return made.then(ref, rows, '.map(refusing, spec=..., on_error="skip")')
    ref = made.ref.map(raised, spec=made.ref.spec)
    return made.then(ref, [raised_row(row) for row in made.rows], ".map(raised, spec=...)")


def flat_mapped(made, dice):
    rows = [row for row in made.rows for _ in range(copy_count(row))]
    options = {"count": copy_count} if dice.flag() else {}
    ref = made.ref.flat_map(copies, spec=made.ref.spec, **options)
    code = ", count=copy_count" * len(options)
    return made.then(ref, rows, f".flat_map(copies{code}, spec=...)")


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
    options, code = {"grows": False}, ", grows=False"
    values = [row["id"].values[0] for row in made.rows] if _has_ids(made) else None
    if form == "by" and values is not None:
        options, code = {"grows": False, "by": "id"}, ', grows=False, by="id"'
    if form == "key" and values is not None:
        options, code = {"key": "id"}, ', key="id"'
        places = [program["key_share"](value, [5, 3, 2], seed) for value in values]
        chosen = [place for place, each in enumerate(places) if each == share]
    else:
        of_values = values if "by" in options else None
        chosen = program["split_shares"](len(made), [5, 3, 2], seed, of_values)[share] if len(made) else []
    ref = made.ref.split(0.5, 0.3, seed=seed, **options)[share]
    code = f".split(0.5, 0.3, seed={seed}{code})[{share}]"
    return made.then(ref, [made.rows[place] for place in chosen], code)


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
    capacity, long = dice.number(1, 9), dice.pick(["cut", "drop"])
    options = {
        "long": long,
        "round_to": dice.pick([1, 3]),
        "shuffle_within": dice.flag(),
        "segments": dice.pick(["segments", None]),
        "positions": dice.pick(["positions", None]),
        "mask": dice.pick(["mask", None]),
        "values": [name for name in ("id", "notes") if made.kind == "document" and name in made.names],
        "pad": {"tokens": -1},
    }
    ref = made.ref.packed(capacity, fields="tokens", **options)

    def rows_at(epoch, seed):
        found = ref.at(epoch, seed=seed)
        documents = [found.documents(n) for n in range(len(found))]
        assert sorted(itertools.chain(*documents)) == pieces_of(made.rows, capacity, long)
        return [packed_row(made.rows, pieces, capacity, options) for pieces in documents]

    extra = [options[name] for name in ("segments", "positions", "mask") if options[name]]
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    code = f'{made.code}.packed({capacity}, fields="tokens"{given})'
    names = ("tokens", *extra, *options["values"])
    return Drawn(ref, rows_at, "row", names, code, made.bases)


def pieces_of(rows, capacity, long):
    """Return each piece that comes once an epoch, in order."""
    found = []
    for record, row in enumerate(rows):
        length = row["tokens"].shape[0]
        if long == "cut" or length <= capacity:
            starts = range(0, length, capacity)
            found += [(record, start, min(start + capacity, length)) for start in starts]
    return found


def packed_row(rows, pieces, capacity, options):
    """Return the row of some pieces, token by token."""
    tokens, segments, positions, mask = [], [], [], []
    for segment, (record, start, stop) in enumerate(pieces, 1):
        tokens += rows[record]["tokens"].values[start:stop]
        segments += [segment] * (stop - start)
        positions += range(start, stop)
        mask += [True] * (stop - start - 1) + [False]
    missing = capacity - len(tokens)
    assert missing >= 0
    row = {"tokens": array("i4", tokens + [-1] * missing)}
    fields = {"segments": segments, "positions": positions, "mask": mask}
    for name, values in fields.items():
        if options[name]:
            padding = False if name == "mask" else 0
            row[name] = array("?" if name == "mask" else "i4", values + [padding] * missing)
    for name in options["values"]:
        values = [rows[record][name] for record, _, _ in pieces]
        row[name] = array("i8", [value.values[0] for value in values]) if name == "id" else values
    return row


def bucketed(made, dice):
    made = (
        with_fields(made, [name for name in made.names if name != "text"]) if "text" in made.names else made
    )
    tokens, most = dice.number(1, 30), dice.pick([None, 2])
    lengths = dice.pick(["lengths", None])
    options = {"tokens": tokens, "max_records": most, "lengths": lengths, "pad": {"tokens": -1}}
    ref = made.ref.bucketed("tokens", **options)

    def rows_at(epoch, seed):
        found = ref.at(epoch, seed=seed)
        documents = [found.documents(n) for n in range(len(found))]
        every = [(record, 0, row["tokens"].shape[0]) for record, row in enumerate(made.rows)]
        assert sorted(itertools.chain(*documents)) == every
        batches = [bucketed_row([made.rows[each.record] for each in some], lengths) for some in documents]
        for some, batch in zip(documents, batches, strict=True):
            assert len(some) == 1 or np.prod(batch["tokens"].shape) <= tokens
            assert len(some) <= (most or len(some))
        return batches

    given = "".join(f", {name}={value!r}" for name, value in options.items())
    names = (*made.names, *([lengths] if lengths else []))
    return Drawn(ref, rows_at, "batch", names, f'{made.code}.bucketed("tokens"{given})', made.bases)


def bucketed_row(rows, lengths):
    """Return the batch of some rows: fields stacked, those that vary padded to the longest."""
    batch = {name: stacked([row[name] for row in rows], -(name == "tokens")) for name in rows[0]}
    counts = [row["tokens"].shape[0] for row in rows]
    return batch | ({lengths: array("i4", counts)} if lengths else {})


def stacked(values, pad):
    if not isinstance(values[0], Array):
        return values  # json values
    longest = max((value.shape[0] for value in values if value.shape), default=0)
    inner = (longest,) if values[0].shape else ()
    padded = [[*value.values, *[pad] * (longest - len(value.values))] for value in values]
    return array(values[0].dtype, itertools.chain(*padded), (len(values), *inner))


def sampled(made, dice, program):
    count = dice.pick([None, 1, 7])
    weights = dice.pick([None, [dice.number(0, 3) for _ in made.rows]])
    if weights is not None and not any(weights):
        weights[-1] = 2.5
    whole = program["whole_weights"]([1] * len(made) if weights is None else weights)
    ref = made.ref.sampled(weights, records=count)

    def rows_at(epoch, seed):
        draw = program["draw_of"](seed, epoch, len(ref))
        return [made.rows[program["sample_index"](n, draw, whole)] for n in range(len(ref))]

    code = f"{made.code}.sampled({weights}, records={count})"
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
         "flat_map": flat_mapped, "concat": joined, "chunks": chunked, "split": divided}  # fmt: skip
DRAWN = {"packed": packed, "bucketed": bucketed, "sampled": sampled}
VIEWS = (*PLAIN, *DRAWN)
MOST_ROWS = 60


def is_possible(view, made):
    """Return whether the library has this view of these records, and they do not grow too many."""
    if view in ("concat", "flat_map"):
        return len(made) <= MOST_ROWS
    if view == "fields":
        return bool(made.names)
    if view in ("chunks", "packed", "bucketed"):
        return (made.kind in ("document", "chunk", "row") and "tokens" in made.names) or (
            view == "chunks" and made.kind == "array"
        )
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
