"""Give out the places of a stream to rollouts that end in any order, fail and are given out again.

The state is the next new place, and the places before it that have not ended. A place's record and random
numbers depend on the place alone, so giving it out again needs no memory of the first time.

Internally a rank counts its own places: number ``epoch * own + row``. The rank of a place is its position
(among those that are kept) modulo the number of ranks, in every epoch, whether or not the run began in the
middle of one. Saved states therefore never overlap, and those of all ranks together tell what is left for
other ranks.
"""

import hashlib
import heapq
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, NoReturn

from yogadl._core.arguments import int_argument
from yogadl._core.protocols import Item_co
from yogadl._stream.cursor import (
    TICKETS,
    Skipped,
    check_can_be_shown,
    is_whole,
    read_cursor,
    read_skipped,
    write_cursor,
)
from yogadl._stream.cut import Point, Shard
from yogadl._stream.items import Records
from yogadl._stream.run import RowBlocks, Run
from yogadl.errors import ConfigurationError, CursorError, TicketError

# Records are read together up to this size and number; an open ticket keeps the memory of at most that many.
TOGETHER_BYTES: Final = 64_000
TOGETHER_RECORDS: Final = 64
DROPPED_PLACES: Final = 10_000  # the most that are listed, and saved
REASON_LETTERS: Final = 200  # the most that are kept of a reason
LONG_WAIT_S: Final = 60.0  # after it, a warning says that `next` waits
UNREACHED_PLACES: Final = 1_000_000  # the most places that merged states list, because a rank was behind

_VERSION: Final = 1
_KEYS: Final = frozenset((TICKETS, "run", "cursor", "rank", "ranks", "next", "open", "dropped"))
_AS_SAVED = "pass state= as tickets.state_dict() returned it, or begin anew"


class Dropped(NamedTuple):
    """A place that was dropped.

    Attributes:
        place: The place.
        reason: The reason that the driver gave.
    """

    place: Point
    reason: str


class Ticket(Generic[Item_co]):
    """A place of a stream that is given out, until it ends by `done`, `again` or `drop`.

    Belongs to the process that made it. Any thread may end it; the second one that does gets a `TicketError`.

    Attributes:
        place: The epoch and the position in it, counted over all shards as in cursors.
    """

    __slots__ = ("_group", "_has_record", "_number", "_record", "_tickets", "place")

    def __init__(
        self, tickets: "Tickets[Item_co]", number: int, place: Point, group: "_Group | None"
    ) -> None:
        self.place = place
        self._tickets = tickets
        self._number = number
        self._group = group
        self._record: Any = None
        self._has_record = False

    @property
    def record(self) -> Item_co:
        """The record, which is read when it is first asked for, often together with those after it.

        Raises:
            StageError: if a function of the stream raises. The ticket stays open: drop it, or ask again.
        """
        if not self._has_record:
            group, self._group = self._group, None
            self._record = self._tickets._read(self._number, group)
            self._has_record = True
        found: Item_co = self._record
        return found

    def done(self) -> None:
        """End this place for good: its result is used, or saved together with the state.

        Raises:
            TicketError: if the ticket has ended, or is another process's.
        """
        self._tickets._end(self)

    def again(self) -> None:
        """End this ticket, and have the same place given out again, before new ones.

        Raises:
            TicketError: if the ticket has ended, or is another process's.
        """
        self._tickets._end(self, is_again=True)

    def drop(self, reason: str) -> None:
        """End this place for good, and list it in `Tickets.dropped`.

        Raises:
            TicketError: if the ticket has ended, or is another process's.
        """
        self._tickets._end(self, reason=str(reason)[:REASON_LETTERS])

    @property
    def is_open(self) -> bool:
        """Whether the ticket has not ended."""
        return self._tickets._holds(self)

    def __repr__(self) -> str:
        state = "open" if self.is_open else "ended"
        return f"<Ticket of epoch {self.place.epoch}, position {self.place.position}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise TicketError(
            "a ticket belongs to the process that made it: send ticket.place and ticket.record, and end the "
            "ticket here, by tickets.ticket(place) when the result comes"
        )


class _Group(Generic[Item_co]):
    """Consecutive places whose records are read together, when the first of them is asked for."""

    __slots__ = ("_first", "_is_read", "_lock", "_records", "last")

    def __init__(self, first: int, last: int) -> None:
        self._first, self.last = first, last
        self._lock = threading.Lock()
        self._is_read = False
        self._records: list[Any] = []

    def take(self, number: int, run: Run, blocks: RowBlocks) -> tuple[Any] | None:
        """Return the record of a place, and let go of it; None if the records can't be read together."""
        with self._lock:
            if not self._is_read:
                self._is_read = True
                epoch, row = divmod(self._first, run.shard.own(0))
                try:
                    rows = blocks.rows(Point(epoch, 0), row, row + self.last - self._first)
                    self._records = list(run.spec.records(run.read(rows), len(rows)))
                except Exception:  # noqa: BLE001  (each record is read alone then, and its reader gets its error)
                    self._records = []
            if not self._records:
                return None
            found, self._records[number - self._first] = self._records[number - self._first], None
            return (found,)


class _Left(NamedTuple):
    """What is left to give out; positions count kept ones."""

    opened: Sequence[Point]
    next: Point
    dropped: Sequence[Dropped]
    run: str  # equal for the ranks that resumed from the same states
    first: Point | None  # before it, all places of all ranks have ended; None if that is not known


class Tickets(Iterator[Ticket[Item_co]]):
    """Gives out the places of a stream one by one; they end in any order.

    Thread-safe. Belongs to the process that made it.

    Example:
        >>> import yogadl
        >>> stream = yogadl.from_source([10, 11, 12, 13]).stream()
        >>> tickets = stream.tickets()
        >>> first, second = next(tickets), next(tickets)
        >>> second.done()
        >>> state = tickets.state_dict()
        >>> tickets = stream.tickets(state=state)
        >>> int(next(tickets).record), int(next(tickets).record)
        (10, 12)
    """

    def __init__(
        self,
        run: Run,
        max_open: int,
        max_lead: int | None,
        state: Any,
        epochs: int | None,
        rebind: bool,
    ) -> None:
        shard = run.shard
        if shard.ranks > 1 and shard.remainder != "uneven":
            raise ConfigurationError(
                "tickets need no shards of equal length: open the stream without drop_shard_remainder and "
                "pad_shard_remainder"
            )
        self._run, self._own, self._skipped = run, shard.own(0), run.identity().skipped
        self._max_open = int_argument("max_open", max_open, 1)
        self._max_lead = None if max_lead is None else int_argument("max_lead", max_lead, 1)
        count = None if epochs is None else int_argument("epochs", epochs, 1)
        if not self._own and count is None:
            raise ConfigurationError(
                f"an epoch has {shard.records} records, so shard {shard.rank} of {shard.ranks} has none, and "
                "would wait for ever: read fewer shards, or pass epochs="
            )
        self._end_epoch = None if count is None else run.start.epoch + count
        left = _begun(run) if state is None else _left_of(run, state, rebind)
        self._name = left.run
        self._next = _own_number(left.next, shard)
        # Each place that was given out, or waits to be given out again, in ascending order.
        self._unended: dict[int, Ticket[Item_co] | None] = dict.fromkeys(
            sorted(_own_number(place, shard) for place in left.opened)
        )
        self._again = list(self._unended)  # a heap
        self._dropped = deque(left.dropped, DROPPED_PLACES)
        self._open_count = self._waiting = 0
        self._group: _Group | None = None
        self._followed = None if shard.ranks == 1 else self._place_count(left.first or run.start)
        self._first = next(iter(self._unended), self._next)  # the first place that may not have ended
        self._together = run.at_once(TOGETHER_BYTES, TOGETHER_RECORDS)
        self._blocks = RowBlocks(run, self._together)
        self._pid = os.getpid()
        self._changed = threading.Condition()

    def __reduce__(self) -> NoReturn:
        raise TicketError("tickets belong to one process: save tickets.state_dict()")

    def __iter__(self) -> "Tickets[Item_co]":
        return self

    def __next__(self) -> Ticket[Item_co]:
        """Return the next ticket: of a place that is given out again, or else of a new one.

        It waits while `max_open` tickets are open, or the lead is `max_lead`; at the end of the last epoch,
        until all tickets have ended, since each may be given out again.

        Raises:
            TicketError: if it would wait for ever: in the only thread, or in an event loop.
        """
        self._check_process()
        with self._changed:
            while True:
                found = self._take()
                if found is not None:
                    return found
                if self._is_finished():
                    self._changed.notify_all()
                    raise StopIteration
                self._refuse_deadlock()
                self._waiting += 1
                try:
                    if not self._changed.wait(LONG_WAIT_S):
                        self._warn_of_wait()
                        self._changed.wait()
                finally:
                    self._waiting -= 1

    def take(self) -> Ticket[Item_co] | None:
        """Return the next ticket, or None where `next` would wait or end; see `finished`."""
        self._check_process()
        with self._changed:
            return self._take()

    @property
    def finished(self) -> bool:
        """Whether all places of all epochs have ended."""
        self._check_process()
        with self._changed:
            return self._is_finished()

    def ticket(self, place: Sequence[int]) -> Ticket[Item_co]:
        """Return the open ticket of a place, such as one that a worker sends back with its result.

        Raises:
            TicketError: if the place has no open ticket here: it has ended, or waits to be given out, or is
                another rank's.
        """
        self._check_process()
        if not isinstance(place, list | tuple) or len(place) != 2:
            raise ConfigurationError(f"a place is (epoch, position), as ticket.place is, not {place!r:.100}")
        epoch, position = int_argument("an epoch", place[0]), int_argument("a position", place[1])
        shard, skipped = self._run.shard, self._skipped
        kept = _as_kept(Point(epoch, position), skipped) if position < skipped.records else None
        found = None
        if kept is not None and kept.position % shard.ranks == shard.rank:
            with self._changed:
                found = self._unended.get(_own_number(kept, shard))
        if found is None:
            raise TicketError(
                f"epoch {epoch}, position {position} has no open ticket here: it has ended, was not given "
                "out since the resume, or belongs to another rank"
            )
        return found

    def dropped(self) -> list[Dropped]:
        """Return the places that were dropped, the last 10,000 of this rank's, earlier runs included."""
        self._check_process()
        with self._changed:
            return list(self._dropped)

    @property
    def watermark(self) -> int:
        """The place up to which all of this rank's have ended, counted over all epochs and ranks.

        The least of all ranks is what each passes to `follow`.
        """
        self._check_process()
        with self._changed:
            return self._watermark()

    def follow(self, watermark: int) -> None:
        """Take the least watermark of all ranks, from which `max_lead` is counted; a smaller one is ignored.

        Until it is called, the other ranks count as not having ended anything since the states that were
        passed, or, with this rank's own state alone, since the stream's start.
        """
        self._check_process()
        watermark = int_argument("watermark", watermark)
        with self._changed:
            if self._followed is not None:
                self._followed = max(self._followed, watermark)
                self._changed.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """Return what `RecordStream.tickets` needs to resume: a JSON dict, some 20 bytes an open ticket.

        Save it together with what the ended tickets' results became, such as the model. Its ``"cursor"`` is
        that of a stream of which all records before it have ended.
        """
        self._check_process()
        with self._changed:
            unended, following, dropped = list(self._unended), self._next, list(self._dropped)
        identity = self._run.identity()
        first = self._kept_place(unended[0] if unended else following)
        return {
            TICKETS: _VERSION,
            "run": self._name,
            "cursor": write_cursor(identity, first),
            "rank": self._run.shard.rank,
            "ranks": self._run.shard.ranks,
            "next": list(self._place(following)),
            "open": [list(self._place(number)) for number in unended],
            "dropped": [[*place, reason] for place, reason in dropped],
        }

    def __repr__(self) -> str:
        # Without the lock, which another thread may have held when this process forked.
        waiting = len(self._unended) - self._open_count
        epoch, position = self._place(self._next)
        return (
            f"<Tickets: {self._open_count} open, {waiting} to be given out again, then "
            f"epoch {epoch}, position {position}>"
        )

    def _end(self, ticket: Ticket, *, is_again: bool = False, reason: str | None = None) -> None:
        """End a ticket."""
        self._check_process()
        number = ticket._number
        with self._changed:
            if self._unended.get(number) is not ticket:
                raise TicketError(f"{ticket.place} has ended already: each ticket ends once")
            self._open_count -= 1
            if is_again:
                self._unended[number] = None
                heapq.heappush(self._again, number)
            else:
                del self._unended[number]
                if reason is not None:
                    self._dropped.append(Dropped(ticket.place, reason))
            if self._waiting:
                self._changed.notify_all()

    def _holds(self, ticket: Ticket) -> bool:
        """Return whether a ticket has not ended."""
        return self._unended.get(ticket._number) is ticket

    def _read(self, number: int, group: "_Group | None") -> Any:
        """Return the record of a place; with a group, the places of it are read together."""
        self._check_process()
        run = self._run
        if group is not None:
            found = group.take(number, run, self._blocks)
            if found is not None:
                return found[0]
        epoch, row = divmod(number, self._own)
        return Records(run).item(run.rows(Point(epoch, 0), row, row + 1))

    def _take(self) -> Ticket[Item_co] | None:
        """Return the next ticket, or None if none can be given out now."""
        if self._open_count >= self._max_open:
            return None
        group = None
        if self._again and self._is_before_end(self._again[0]):
            number = heapq.heappop(self._again)
        else:
            number = self._next
            if not self._is_before_end(number) or not self._is_within_lead():
                return None
            group = self._group_of(number)
            self._next = number + 1
        found = self._unended[number] = Ticket(self, number, self._place(number), group)
        self._open_count += 1
        return found

    def _group_of(self, number: int) -> "_Group | None":
        """Return the group of a new place, if records are read together."""
        if self._together == 1:
            return None
        if self._group is None or number >= self._group.last:
            last = min(number + self._together, (number // self._own + 1) * self._own)
            self._group = _Group(number, last)
        return self._group

    def _is_within_lead(self) -> bool:
        if self._max_lead is None:
            return True
        least = self._watermark() if self._followed is None else min(self._watermark(), self._followed)
        return self._place_count(self._kept_place(self._next)) - least < self._max_lead

    def _watermark(self) -> int:
        return self._place_count(self._kept_place(self._first_unended()))

    def _first_unended(self) -> int:
        # No place before it can come back, so each number is passed once.
        while self._first < self._next and self._first not in self._unended:
            self._first += 1
        return self._first

    def _is_finished(self) -> bool:
        return not self._is_before_end(self._first_unended())

    def _is_before_end(self, number: int) -> bool:
        return self._end_epoch is None or number < self._end_epoch * self._own

    def _refuse_deadlock(self) -> None:
        """Refuse to wait where no other thread could end a ticket."""
        is_in_loop = _is_in_event_loop()
        if is_in_loop or self._waiting + 1 >= threading.active_count():
            where = (
                "an event loop, which it would stop" if is_in_loop else "the only thread, so none would end"
            )
            raise TicketError(
                f"{self._open_count} tickets are open, and next waits until one ends, but this is {where}: "
                "end tickets first, or call tickets.take(), which returns None instead of waiting"
            )

    def _warn_of_wait(self) -> None:
        import logging  # slow to import, and rarely needed

        logging.getLogger("yogadl").warning(
            "next(tickets) has waited %d s for one of %d open tickets to end, and waits on: a driver that "
            "takes and ends tickets in one thread calls tickets.take(), which returns None instead",
            LONG_WAIT_S, self._open_count,
        )  # fmt: skip

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise TicketError(
                "these tickets are of the process that forked this one: end them there, or resume here from "
                "tickets.state_dict()"
            )

    def _kept_place(self, number: int) -> Point:
        """Return the place of one of this rank's own places; its position counts kept ones."""
        if not self._own:  # there are fewer records than ranks
            return Point(self._end_epoch or 0, 0)
        return _own_place(number, self._run.shard)

    def _place(self, number: int) -> Point:
        epoch, kept = self._kept_place(number)
        skipped = self._run.skipped
        return Point(epoch, kept if skipped is None else skipped.place(kept))

    def _place_count(self, place: Point) -> int:
        """Return the number of places of all ranks before a place, given its kept position."""
        return place.epoch * self._run.shard.records + place.position


def _own_number(place: Point, shard: Shard) -> int:
    """Return the number of a rank's first place at or after a place, counted over all epochs."""
    row = max(0, -(-(place.position - shard.rank) // shard.ranks))
    own = shard.own(0)
    return place.epoch * own + min(row, own)


def _own_place(number: int, shard: Shard) -> Point:
    epoch, row = divmod(number, shard.own(0))
    return Point(epoch, shard.rank + row * shard.ranks)


def _as_kept(place: Point, skipped: Skipped) -> Point | None:
    """Return a place with its position counted among the kept ones, or None if it is left out."""
    kept = skipped.before(place.position)
    return Point(place.epoch, kept) if kept < skipped.kept and skipped.place(kept) == place.position else None


def _is_in_event_loop() -> bool:
    asyncio = sys.modules.get("asyncio")  # if it was not imported, there is no loop
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# Read saved states, and merge those of all ranks.


class _Saved(NamedTuple):
    """The state of one rank, checked; positions count those that were kept then."""

    rank: int
    ranks: int
    skipped: Skipped
    left: _Left


def _begun(run: Run) -> _Left:
    """Return what is left at the start of a stream."""
    skipped = run.identity().skipped
    start = run.start.epoch, skipped.place(run.start.position)
    return _Left((), run.start, (), _run_name(start, run.shard.ranks, skipped.ranges), run.start)


def _run_name(*parts: object) -> str:
    """Return a name that is equal on all ranks, given what they all know."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _left_of(run: Run, given: Any, rebind: bool) -> _Left:
    """Return what is left for this rank, given its own state or those of all ranks.

    Raises:
        CursorError: if the states belong to other data or another order, don't fit together, or a state is
            missing.
    """
    states = [given] if isinstance(given, Mapping) else given
    if isinstance(states, str) or not isinstance(states, Sequence) or not states:
        kind = type(given).__name__
        raise CursorError(f"state is a dict, or a list of those of all ranks, not this {kind}: {_AS_SAVED}")
    saved = {state.rank: state for state in (_read_state(run, state, rebind) for state in states)}
    first = next(iter(saved.values()))
    if len(saved) < len(states):
        raise CursorError(f"two of the {len(states)} states are of the same rank: pass one of each rank")
    if any(
        (state.ranks, state.skipped, state.left.run) != (first.ranks, first.skipped, first.left.run)
        for state in saved.values()
    ):
        raise CursorError(
            "the states are of different runs: after a resume on another number of ranks, or with other "
            "skip_ranges, not all ranks had saved. Pass the states of all ranks from which that run resumed, "
            "with the model that was saved with them"
        )
    shard, now = run.shard, run.identity().skipped
    is_whole = len(saved) == first.ranks
    if first.ranks == shard.ranks and shard.rank in saved and first.skipped == now:
        left = saved[shard.rank].left
        if is_whole:
            left = left._replace(first=_first_of(saved.values()))
    elif is_whole:
        by_rank = sorted(saved.values())
        left = _merged(by_rank)
        parts = [(state.rank, state.left.next, state.left.opened) for state in by_rank]
        left = left._replace(run=_run_name(left.run, shard.ranks, now.ranges, parts))
    else:
        raise CursorError(
            f"the tickets are of {first.ranks} ranks, and these states are of {sorted(saved)} alone; this is "
            f"rank {shard.rank} of {shard.ranks}. If the number of ranks or skip_ranges changed, it gets "
            f"places of other ranks: pass the states of all {first.ranks} ranks as a list"
        )
    return _for_rank(left, first.skipped, run)


def _first_of(states: Iterable[_Saved]) -> Point:
    """Return the place before which all places of all ranks have ended, given the states of all."""
    return min(place for state in states for place in (state.left.next, *state.left.opened[:1]))


def _merged(states: Sequence[_Saved]) -> _Left:
    """Return what states leave together: open places, and those that only slower ranks had not reached."""
    # A rank has no places if there are fewer records than ranks.
    chosen = [state for state in states if state.rank < state.skipped.kept]
    last = max(state.left.next for state in chosen)
    missed: list[Point] = []
    for state in chosen:
        shard = Shard(state.skipped.kept, state.rank, state.ranks, "uneven")
        begin, end = _own_number(state.left.next, shard), _own_number(last, shard)
        if len(missed) + end - begin > UNREACHED_PLACES:
            raise CursorError(
                f"the slower ranks are more than {UNREACHED_PLACES} places behind, which other ranks can't "
                f"take over: resume on {state.ranks} ranks, each with its own state, and pass max_lead= there"
            )
        missed += (_own_place(number, shard) for number in range(begin, end))
    opened = [*missed, *(place for state in chosen for place in state.left.opened)]
    dropped = sorted(each for state in states for each in state.left.dropped)
    return _Left(opened, last, dropped, states[0].left.run, _first_of(chosen))


def _for_rank(left: _Left, saved: Skipped, run: Run) -> _Left:
    """Return the share of a rank, without the places that its stream leaves out now."""
    now, shard = run.identity().skipped, run.shard

    def moved(place: Point) -> Point:
        return Point(place.epoch, now.before(saved.place(place.position)))

    opened = (_as_kept(Point(place.epoch, saved.place(place.position)), now) for place in left.opened)
    own = [place for place in opened if place is not None and place.position % shard.ranks == shard.rank]
    dropped = [each for each in left.dropped if now.before(each.place.position) % shard.ranks == shard.rank]
    first = None if left.first is None else moved(left.first)
    return left._replace(opened=own, next=moved(left.next), dropped=dropped, first=first)


def _read_state(run: Run, state: Any, rebind: bool) -> _Saved:  # Any: it comes from a file
    """Return a saved state, after a check that it belongs to this stream."""
    if isinstance(state, Mapping):
        check_can_be_shown(state)
    if not isinstance(state, Mapping) or TICKETS not in state:
        what = (
            "a cursor: open the stream with it, and call tickets() without state"
            if (isinstance(state, Mapping) and "yogadl" in state)
            else f"this {type(state).__name__}"
        )
        raise CursorError(f"state is what tickets.state_dict() returned, not {what}")
    if not is_whole(state[TICKETS]) or state[TICKETS] != _VERSION:
        raise CursorError(
            f"the tickets are of version {state[TICKETS]!r:.100}, this yogadl reads version {_VERSION}: use "
            "the yogadl that wrote them, or a newer one"
        )
    if state.keys() != _KEYS:
        odd = sorted(map(str, state.keys() ^ _KEYS))
        raise CursorError(f"the tickets lack, or have too much, {', '.join(odd)[:100]}: {_AS_SAVED}")
    if not isinstance(state["run"], str):
        raise CursorError(f"the tickets' 'run' is {state['run']!r:.100}, not a string: {_AS_SAVED}")
    _check_weights(run, state["cursor"])
    read_cursor(run.identity(), state["cursor"], rebind)
    skipped = read_skipped(state["cursor"])
    ranks = _count(state["ranks"], "ranks", 1)
    rank = _count(state["rank"], "rank", 0, ranks)
    following = _read_place(
        state["next"], "next", skipped, *((rank, ranks) if rank < skipped.kept else (0, 1))
    )
    opened = [_read_place(pair, "open", skipped, rank, ranks) for pair in _list(state["open"], "open")]
    if opened != sorted(set(opened)) or (opened and opened[-1] >= following):
        raise CursorError(f"the tickets' 'open' are not in order, or not before 'next': {_AS_SAVED}")
    cursor = Point(state["cursor"]["epoch"], skipped.before(state["cursor"]["position"]))
    if cursor != (opened[0] if opened else following):
        raise CursorError(f"the tickets' 'cursor' is not at their first place: {_AS_SAVED}")
    dropped = []
    for entry in _list(state["dropped"], "dropped"):
        if len(_list(entry, "dropped")) != 3 or not isinstance(entry[2], str):
            raise CursorError(f"the tickets' 'dropped' has {entry!r:.100}: {_AS_SAVED}")
        place = Point(_count(entry[0], "dropped", 0), _count(entry[1], "dropped", 0, skipped.records))
        dropped.append(Dropped(place, entry[2][:REASON_LETTERS]))
    return _Saved(rank, ranks, skipped, _Left(opened, following, dropped, state["run"], None))


def _check_weights(run: Run, cursor: Any) -> None:  # Any: it comes from a file
    """Refuse a state of a mix with other weights, under which its places are others."""
    read_skipped(cursor)  # it has the form of a cursor
    ours, theirs = run.identity().order_in(cursor["epoch"]), dict(cursor["order"])
    if ours != theirs and ours.get("name") == theirs.get("name") == "mix":
        raise CursorError(
            "the tickets are of a mix with other weights, or one that was opened with a cursor that changed "
            "them: open it with the same weights, and the same cursor= if there was one. Weights can change "
            "when all places of an epoch have ended (epochs=): open the mix with the others, stream = "
            "mix.stream(...), and begin the next epoch by mix.stream(..., cursor=stream.cursor(0, epoch=E))"
        )


def _read_place(pair: Any, name: str, skipped: Skipped, rank: int, ranks: int) -> Point:
    """Return a place of a rank, its position counted among those that were kept."""
    if len(_list(pair, name)) == 2:
        place = Point(_count(pair[0], name, 0), _count(pair[1], name, 0, skipped.records))
        kept = _as_kept(place, skipped)
        if kept is not None and kept.position % ranks == rank:
            return kept
    raise CursorError(
        f"the tickets' {name!r} has {pair!r:.100}, no place of rank {rank} of {ranks}: {_AS_SAVED}"
    )


def _list(value: Any, name: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise CursorError(f"the tickets' {name!r} has {value!r:.100}, not a list: {_AS_SAVED}")


def _count(value: Any, name: str, least: int, end: int = 2**63) -> int:
    if is_whole(value) and least <= value < end:
        return value
    raise CursorError(
        f"the tickets' {name!r} has {value!r:.100}, no number from {least} to {end - 1}: {_AS_SAVED}"
    )
