"""Cursors: a place in a stream, written as JSON and read back; skipped positions; the numbers of items."""

import bisect
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from yogadl._core.arguments import int_argument
from yogadl._core.frozen import MAX_DEPTH, frozen, is_deeper
from yogadl._core.protocols import Indices, Lineage, Stored, views_of
from yogadl._stream.cut import Cut, Point, Shard
from yogadl.errors import ConfigurationError, CursorError, YogaError

# Leave positions out of every epoch, and count the kept positions: integers only.
#
# Positions in cursors and in users' arguments include those left out. Shards and items count kept positions
# only.


@frozen
class Skipped:
    """Ranges of positions that are left out, in ascending order, no two of them adjacent.

    Args:
        ranges: The first position of each range, and the position after its last one.
        records: The number of positions of an epoch, including those left out.
    """

    ranges: tuple[tuple[int, int], ...]
    records: int

    @staticmethod
    def of(pairs: Any, records: int) -> "Skipped":  # Any: from the user, or from a file
        """Return these ranges, which may be in any order and overlap, as `Skipped`.

        Raises:
            ConfigurationError: if they are no ranges, or leave no position.
        """
        if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
            raise ConfigurationError(f"pass a list of (start, stop), not {pairs!r:.100}")
        ranges: list[tuple[int, int]] = []
        for pair in pairs:
            try:
                start, stop = pair
            except (TypeError, ValueError):
                raise ConfigurationError(f"a range is (start, stop), not {pair!r:.100}") from None
            start, stop = int_argument("a range's start", start), int_argument("a range's stop", stop)
            if not start < stop <= records:
                raise ConfigurationError(
                    f"({start}, {stop}) is no range of an epoch's positions: they are 0 to {records - 1}"
                )
            ranges.append((start, stop))
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(ranges):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        skipped = Skipped(tuple(merged), records)
        if ranges and not skipped.kept:
            raise ConfigurationError(f"nothing is left of the {records} positions of an epoch")
        return skipped

    @property
    def kept(self) -> int:
        """The number of kept positions."""
        return self.records - sum(stop - start for start, stop in self.ranges)

    @cached_property
    def _jumps(self) -> tuple[Indices, Indices]:
        """The number of kept positions before each range, and the number left out up to each."""
        bounds = np.array(self.ranges, np.int64).reshape(-1, 2)
        left_out = np.cumsum(bounds[:, 1] - bounds[:, 0])
        return bounds[:, 1] - left_out, np.concatenate([[0], left_out])

    def are_kept(self, positions: Indices) -> NDArray[np.bool_]:
        """Return whether positions are kept."""
        bounds = np.array(self.ranges, np.int64).ravel()
        found: NDArray[np.bool_] = np.searchsorted(bounds, positions, side="right") % 2 == 0
        return found

    def places(self, kept: Indices) -> Indices:
        """Return the position of each kept position, given its number among the kept ones."""
        starts, left_out = self._jumps
        return kept + left_out[np.searchsorted(starts, kept, side="right")]

    def place(self, kept: int) -> int:
        """Return the position of a kept position, given its number."""
        return int(self.places(np.array(kept)))

    def before(self, position: int) -> int:
        """Return the number of kept positions before a position."""
        begun = bisect.bisect_left(self.ranges, (position, 0))
        if not begun:
            return position
        return position - int(self._jumps[1][begun]) + max(0, self.ranges[begun - 1][1] - position)


# Write a place in a stream as a small JSON dict, and read it back with full checks.
#
# The dict is the same on every shard that has delivered the same number of records. A later version may save
# cursors of a single shard, with the keys ``shard`` and ``needs``; this version refuses both by name.


VERSION = 1
TICKETS = "yogadl_tickets"  # the key that a state of `Tickets` has, and no cursor
_LARGEST = 2**63 - 1
_SEED = "seed"
_SKIP = "skip_shuffle_at_epoch_end"
_NUMBERS = ("epoch", "position", "records")
_RANGES = "skip_ranges"  # only if there are any, so that other cursors stay unchanged
_KEYS = frozenset({"yogadl", *_NUMBERS, "fingerprint", "order", _SEED, _SKIP})
_ROWS = "rows"  # the composition of rows, only if rows are made of several records
_VERSION = "version"  # only if requested by a tag, which may name another version later
_OPEN_SAVED_VERSION = "open the dataset and version that it was saved with"
_BEGIN = "or begin an epoch of this data: open the stream without a cursor"
_START_ANEW = "use a cursor as state_dict() returned it, or start anew without one"


@frozen
class Identity:
    """The data of a cursor's stream, and the order in which its position counts; a cursor must match both."""

    fingerprint: str
    order: dict[str, Any]  # the order's description: plain JSON
    seed: int | None
    skip_shuffle_at_epoch_end: bool
    skipped: Skipped
    change: tuple[int, dict[str, Any]] | None = None  # an epoch in which the order has another description
    lineage: Lineage | None = None  # the dataset version, if the data is one
    rows: str | None = None  # what rows of several records, or pieces of one, are made of
    source: Any = field(default=None, compare=False)  # the data, if it is at hand; for errors

    @property
    def records(self) -> int:
        """The number of positions of an epoch, including those left out."""
        return self.skipped.records

    @staticmethod
    def of(state: Mapping[str, Any]) -> "Identity":
        """Return the identity of the stream that a cursor belongs to.

        Raises:
            CursorError: if `state` is no cursor.
        """
        skipped = read_skipped(state)
        order = {name: value for name, value in state["order"].items() if name != "before"}
        change = (state["epoch"], dict(state["order"])) if "before" in state["order"] else None
        others = {name: state[name] for name in ("fingerprint", _SEED, _SKIP)}
        return Identity(order=order, change=change, skipped=skipped, rows=state.get(_ROWS), **others)

    def order_in(self, epoch: int) -> dict[str, Any]:
        """Return the order's description in an epoch; it has "before" if the weights changed in the epoch."""
        return dict(self.order if self.change is None or self.change[0] != epoch else self.change[1])


def write_cursor(identity: Identity, point: Point) -> dict[str, Any]:
    """Return the cursor for `point`: plain ints, strings, bools and one dict of them."""
    ranges = identity.skipped.ranges
    return {
        "yogadl": VERSION,
        "epoch": point.epoch,
        "position": identity.skipped.place(point.position) if ranges else point.position,
        "records": identity.records,
        "fingerprint": identity.fingerprint,
        "order": identity.order_in(point.epoch),
        _SEED: identity.seed,
        _SKIP: identity.skip_shuffle_at_epoch_end,
        **({_RANGES: [list(pair) for pair in ranges]} if ranges else {}),
        **({_ROWS: identity.rows} if identity.rows else {}),
        **({_VERSION: identity.lineage.version} if identity.lineage and identity.lineage.tag else {}),
    }


def read_cursor(identity: Identity, state: Any, rebind: bool = False) -> Point:  # Any: it comes from a file
    """Return the place of a cursor, after a check that the cursor belongs to this stream.

    Args:
        identity: The identity of this stream.
        state: The result of `write_cursor`, possibly from a JSON file.
        rebind: Whether to accept other data of equal length; for rows that are made of several records, other
            data of which each record has an equal length.

    Raises:
        CursorError: if it is no cursor, or belongs to other data or another order; the error names both
            sides.
    """
    skipped = read_skipped(state)
    _check_match(identity, state, skipped, rebind)
    return Point(state["epoch"], identity.skipped.before(state["position"]))


def read_skipped(state: Any) -> Skipped:  # Any: it comes from a file
    """Return the positions that a cursor leaves out.

    Raises:
        CursorError: if `state` is no cursor.
    """
    _check_form(state)
    try:
        return Skipped.of(state.get(_RANGES, ()), state["records"])
    except ConfigurationError as error:
        raise CursorError(f"the cursor's {_RANGES!r} is damaged: {error}: {_START_ANEW}") from None


def is_whole(value: Any) -> TypeGuard[int]:  # Any: it comes from a file
    """Return whether a value of a saved state is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_whole(value) and 0 <= value <= _LARGEST


_VALUE_CHECKS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    *((name, _is_count, "a whole number from 0 to 2**63 - 1") for name in _NUMBERS),
    ("fingerprint", lambda value: isinstance(value, str), "a string"),
    ("order", lambda value: isinstance(value, Mapping), "a dict"),
    (_SEED, lambda value: value is None or is_whole(value), "a whole number or None"),
    (_SKIP, lambda value: isinstance(value, bool), "True or False"),
)


def check_can_be_shown(state: Mapping[str, Any]) -> None:
    """Refuse a dict that messages could not even show."""
    if is_deeper(dict(state), MAX_DEPTH):
        raise CursorError(f"the dict is no cursor, it is nested more than {MAX_DEPTH} deep: {_START_ANEW}")
    try:
        repr(dict(state))
    except ValueError as error:  # Python limits the digits of the numbers that it shows
        problem = "a number in it has too many digits"
        raise CursorError(f"the dict is no cursor, {problem}: {_START_ANEW}") from error


def _check_form(state: Any) -> None:
    """Refuse a dict that is no cursor of this version."""
    if not isinstance(state, Mapping):
        raise CursorError(f"a cursor is a dict, this is {type(state).__name__}: {_START_ANEW}")
    check_can_be_shown(state)
    version = state.get("yogadl")
    if not is_whole(version):
        remedy = "pass it to stream.tickets(state=...)" if TICKETS in state else _START_ANEW
        raise CursorError(
            f"the dict is no yogadl cursor, its 'yogadl' is {version!r}, not {VERSION}: {remedy}"
        )
    if version != VERSION:
        raise CursorError(
            f"the cursor is of version {version}, this yogadl reads version {VERSION}: "
            "use the yogadl that wrote it, or a newer one"
        )
    unknown = sorted(str(key) for key in state.keys() - _KEYS - {_RANGES, _ROWS, _VERSION})
    if unknown:
        raise CursorError(
            f"the cursor has {', '.join(map(repr, unknown))}, which this yogadl does not know: "
            "use the yogadl that wrote it, or a newer one"
        )
    missing = sorted(_KEYS - state.keys())
    if missing:
        raise CursorError(f"the cursor lacks {', '.join(map(repr, missing))}: {_START_ANEW}")
    for name, is_right, form in _VALUE_CHECKS:
        if not is_right(state[name]):
            raise CursorError(f"the cursor's {name!r} is {state[name]!r}, not {form}: {_START_ANEW}")
    for name in (_VERSION, _ROWS):
        if not isinstance(state.get(name, ""), str):
            raise CursorError(f"the cursor's {name!r} is {state[name]!r}, not a string: {_START_ANEW}")
    if state["position"] > state["records"]:
        raise CursorError(
            f"the cursor's 'position' is {state['position']}, more than its records: {_START_ANEW}"
        )


def _check_earlier(identity: Identity, state: Mapping[str, Any]) -> None:
    """Refuse a cursor of an earlier version of the dataset, which has fewer records and another order."""
    lineage = identity.lineage
    for earlier in reversed(lineage.earlier if lineage else ()):
        if (earlier.fingerprint, earlier.records) == (state["fingerprint"], state["records"]):
            assert lineage is not None
            theirs, count = f"version {earlier.version!r}", earlier.records
            other = "" if dict(state["order"]).get("name") == "source" else ", in another order"
            raise CursorError(
                f"the cursor is of {lineage.id!r} {theirs}: version {lineage.version!r} appends "
                f"{identity.records - count} records to these {count}{other}. "
                f"To go on, read only its records: ref[:{count}].stream(..., cursor=cursor). "
                "rebind=True does not help: it accepts only data of equal length. "
                "To read all of this version, begin an epoch without a cursor"
            )


def _is_alias(identity: Identity, fingerprint: str) -> bool:
    """Return whether the version's records have this fingerprint, too, as a copy of foreign files may."""
    from yogadl._views.views import aliases_of  # only cursors with another fingerprint need it

    return identity.source is not None and fingerprint in aliases_of(identity.source)


def _versions_hint(identity: Identity, state: Mapping[str, Any]) -> str:
    """Return what to write if the cursor is of the same data in another version; empty if none is found."""
    source, theirs = identity.source, state["fingerprint"]
    if source is None or theirs == identity.fingerprint:
        return ""
    from yogadl._views.views import earlier_views  # only errors need it

    # A hint is for the error that is raised anyway: a storage that can't be read makes no other one.
    with contextlib.suppress(YogaError):
        if identity.lineage is not None and state["records"] > identity.records:
            later = next((view for view in views_of(source) if isinstance(view, Stored)), None)
            version = None if later is None else later.version_with(theirs)
            if version is not None:
                return f". The cursor is of {identity.lineage.id!r} version {version!r}: open that one"
        for grown, earlier, view in earlier_views(source, state["records"] / max(1, identity.records)):
            if view.fingerprint == theirs:
                call = f"storage.fetch({grown.id!r}, {grown.version!r})"
                return (
                    f". The cursor is of the same views of version {earlier.version!r}, with which "
                    f"{grown.id!r} version {grown.version!r} begins: write {call}[:{earlier.records}] in "
                    f"place of {call}"
                )
    return ""


def _how_to_reopen(identity: Identity, state: Mapping[str, Any], rebind: bool) -> str:
    """Return what to do with a cursor of other data."""
    text = f"{_OPEN_SAVED_VERSION}, {state[_VERSION]!r}" if _VERSION in state else _OPEN_SAVED_VERSION
    if "draw" in identity.order or "draw" in state["order"]:
        text += ", and pass the same arguments to packed, bucketed, grouped or sampled"
    if state.get(_ROWS) == identity.rows:
        if state["records"] == identity.records:
            text += ", or accept other data of equal length by rebind=True"
    else:
        text = f"to finish its epoch, {text}; {_BEGIN}"
        if rebind:
            text += (
                ". rebind=True does not help: a row is made of several records, or of a part of one, so it "
                "is another row unless each record is as long as before"
            )
            text += "" if _ROWS in state else ", which a cursor of an earlier yogadl does not tell"
    return text + _versions_hint(identity, state)


def _check_match(identity: Identity, state: Mapping[str, Any], skipped: Skipped, rebind: bool) -> None:
    """Refuse a cursor that belongs to other data or to another order."""

    def refuse(what: str, theirs: Any, ours: Any, remedy: str) -> CursorError:
        return CursorError(f"the cursor is of {what} {theirs!r}, the stream has {ours!r}: {remedy}")

    order, their_order = identity.order_in(state["epoch"]), dict(state["order"])
    mend = "open the stream with the same shuffle; a mix that has other weights, with this cursor"
    if their_order != order and their_order.get("name") == order.get("name") == "mix":
        # The number of records follows from the order.
        raise refuse("another order,", their_order, order, mend + _versions_hint(identity, state))
    is_other = state["fingerprint"] != identity.fingerprint and not _is_alias(identity, state["fingerprint"])
    if is_other:
        _check_earlier(identity, state)
    if state["records"] != identity.records:
        reopen = _how_to_reopen(identity, state, rebind)
        raise refuse("other data, its number of records is", state["records"], identity.records, reopen)
    if is_other and not (rebind and state.get(_ROWS) == identity.rows):
        reopen = _how_to_reopen(identity, state, rebind)
        raise refuse("other data, its fingerprint is", state["fingerprint"], identity.fingerprint, reopen)
    if their_order != order:
        raise refuse("another order,", their_order, order, mend)
    if state[_SEED] != identity.seed:
        raise refuse("another shuffle, its seed is", state[_SEED], identity.seed, "pass that shuffle_seed")
    if state[_SKIP] != identity.skip_shuffle_at_epoch_end:
        ours = identity.skip_shuffle_at_epoch_end
        raise refuse(f"another shuffle, its {_SKIP} is", state[_SKIP], ours, "pass the same")
    if Skipped.of([*skipped.ranges, *identity.skipped.ranges], identity.records) != identity.skipped:
        theirs, has = list(skipped.ranges), list(identity.skipped.ranges)
        raise refuse("a stream without the positions", theirs, has, f"call stream.skip_ranges({theirs})")


# Number the items of a shard, records or batches, one after another across epochs: integers only.
#
# Frameworks that request items by number need the number of items, the epoch of item j, and the cursor after
# a number of delivered items.


@frozen
class Numbering:
    """The items of a shard, numbered from a start on. Immutable; pickles.

    The numbers continue behind the last epoch, for callers that repeat.

    Args:
        identity: The data and its order.
        shard: The shard.
        start: The place of item 0.
        cut: The number of records in an item, all of one epoch, and the number of epochs.

    Raises:
        ConfigurationError: if there would never be an item, or shards of unequal length would drift into
            different epochs.

    Example:
        >>> from yogadl._stream import Cut, Numbering, Point, Shard
        >>> shard = Shard(records=5, rank=0, ranks=1, remainder="uneven")
        >>> batches = Numbering(None, shard, Point(0, 2), Cut(size=2, epochs=3))
        >>> batches.begun, batches.full, batches.length
        (2, 3, 8)
        >>> batches.locate(3), batches.reach(3)
        ((1, 1), Point(epoch=1, position=2))
    """

    identity: Identity
    shard: Shard
    start: Point
    cut: Cut

    def __post_init__(self) -> None:
        assert not self.cut.across_epochs
        self.cut.require_items(self.shard)
        self.shard.require_step(self.start, self.cut.span(self.start).end)

    @cached_property
    def begun(self) -> int:
        """The number of items in the first epoch, from the start on."""
        return self.cut.items(self.shard.own(self.start.position))

    @cached_property
    def full(self) -> int:
        """The number of items in a whole epoch."""
        return self.cut.items(self.shard.own(0))

    @cached_property
    def length(self) -> int | None:
        """The number of all items; None: without end."""
        return self.cut.count(self.shard, self.start.position)

    def count(self, epoch: int) -> int:
        """Return the number of items in an epoch; in the first epoch, from the start on."""
        return self.begun if epoch == self.start.epoch else self.full

    def locate(self, number: int) -> tuple[int, int]:
        """Return the epoch of an item, and its number in the epoch.

        Raises:
            ConfigurationError: if the item lies in an epoch that shards of unequal length would not enter
                together.
            IndexError: if the item does not exist.
        """
        if number < self.begun:
            return self.start.epoch, number
        self.shard.require_step(self.start, None)
        if not self.full:
            raise IndexError(f"there is no item {number}: an epoch of this shard has none")
        onward, inside = divmod(number - self.begun, self.full)
        return self.start.epoch + 1 + onward, inside

    def position(self, epoch: int, inside: int) -> int:
        """Return the position of the first record of an item, given its number in the epoch."""
        origin = self.start.position if epoch == self.start.epoch else 0
        return origin + inside * self.cut.size * self.shard.ranks + self.shard.rank

    def reach(self, delivered: int) -> Point:
        """Return the place of a reader after it delivered this many items."""
        return self.cut.reach(self.shard, self.cut.span(self.start), delivered)

    def end(self) -> Point:
        """Return the end of the last epoch, which is the same for all shards."""
        assert self.cut.epochs is not None
        last = self.start.epoch + self.cut.epochs - 1
        return self.shard.end(self.start if last == self.start.epoch else Point(last, 0))

    def cursor(self, delivered: int, *, is_end: bool = False) -> dict[str, Any]:
        """Return the cursor after this many items; with `is_end`, for the end of the last epoch."""
        return write_cursor(self.identity, self.end() if is_end else self.reach(delivered))

    def warn_if_finished(self) -> None:
        """Log that there are no items, if the start lies within an epoch; see `Cut.warn_if_finished`."""
        self.cut.warn_if_finished(self.shard, self.cut.span(self.start))
