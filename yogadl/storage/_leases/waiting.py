"""Wait for a builder, decide whether it is alive, and describe it in messages."""

import contextlib
import logging
import os
import random
import socket
import time
from dataclasses import dataclass, field
from typing import Any, Final

from yogadl._core.frozen import parse_json
from yogadl._core.key import DatasetKey
from yogadl._core.printable import printable
from yogadl.errors import LeaseError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import LeasePolicy
from yogadl.storage._files.bucket_root import BucketRoot

_log = logging.getLogger("yogadl")

# The number of heartbeats due within one time to live, so that one or two may fail.
HEARTBEATS_PER_TTL: Final = 6
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_MAX_JITTER: Final = 1.3
_LOG_AFTER_S: Final = 2.0
_LOG_EVERY_S: Final = 60.0
# The limit for reading a lease's object, which is small; other programs could put a large one in its place.
_MAX_BODY_BYTES: Final = 2**20


@dataclass(frozen=True)
class LeaseState:
    """The state of the newest lease of a version, as a list of its objects shows it.

    Args:
        term: Its number; 0 if there is none.
        heartbeat: A text that changes with each heartbeat.
        has_ended: Whether its builder has finished or failed.
        has_waiter: Whether a waiting process has written a mark that it waits for its turn.
    """

    term: int = 0
    heartbeat: str = ""
    has_ended: bool = True
    has_waiter: bool = field(default=False, compare=False)


class SilenceTimer:
    """Measure for how long a lease has not changed, as it does with each heartbeat.

    The time is that of this process's own monotonic clock: the clocks of machines may be hours apart.
    """

    def __init__(self) -> None:
        self._last_state = LeaseState()
        self._since = 0.0

    def silence_s(self, state: LeaseState, requested_s: float, answered: float) -> float:
        """Return for how long, at least, nothing has changed.

        Args:
            state: The newest state.
            requested_s: The time of its request; this process may have been stopped since.
            answered: The time when it arrived.
        """
        if state != self._last_state:
            self._last_state, self._since = state, answered
        return max(0.0, requested_s - self._since)


class LeaseWaiter:
    """One caller's wait for a builder, or for a process that prunes.

    Args:
        root: The root of the leases.
        policy: How long to wait.
        key: The version that is built, or the dataset that is pruned.
        takes_turns: Whether the caller will build even if another process has built the version during the
            wait. Such callers take turns.
    """

    def __init__(
        self,
        root: BucketRoot,
        policy: LeasePolicy,
        key: DatasetKey | _names.WholeDataset,
        *,
        takes_turns: bool = False,
    ) -> None:
        self._root = root
        self._policy = policy
        self._key = key
        self._verb, self._participle = verbs(key)
        self._silence = SilenceTimer()
        self._started = time.monotonic()
        self._log_at_s = _LOG_AFTER_S
        self._pause_s = _FIRST_PAUSE_S
        self._paused_for_term = 0
        self._takes_turns = takes_turns
        self._last_turn: int | None = None  # the term of this process, if other processes wait for their turn
        self._yield_until_s: float | None = None
        self._holder: tuple[int, dict[str, Any]] = 0, {}  # a term, and the content of its lease

    def is_dead(self, state: LeaseState, requested_s: float) -> bool:
        """Return whether the builder has had no heartbeat for too long; log it if so."""
        silence_s = self._silence.silence_s(state, requested_s, time.monotonic())
        if silence_s < self._ttl_s(state):
            return False
        _log.warning(
            "yogadl: %s, which was to %s %s, has sent no heartbeat for %.0f s: taking over",
            self._describe(state), self._verb, self._key, silence_s,
        )  # fmt: skip
        return True

    def log_failure(self, state: LeaseState) -> None:
        """Log why a builder failed, if this call has waited for it."""
        if state.term and self._holder[0] == state.term:
            failed = read_body(self._root, _names.lease(self._key, state.term) + _names.END_SUFFIX).get(
                "failed"
            )
            if failed:
                _log.warning(
                    "yogadl: %s was not %s by %s: %s; trying here",
                    self._key,
                    self._participle,
                    self._describe(state),
                    printable(str(failed)),
                )
            self._holder = 0, {}

    def yields_turn(self, state: LeaseState, requested_s: float) -> bool:
        """Return whether this process has just built, and waiting processes may not have noticed yet.

        Without this, a process that builds repeatedly would always be the first to notice, and starve the
        others.

        Args:
            state: The newest state; its builder has ended.
            requested_s: The time of its request.
        """
        if not self._takes_turns:
            return False
        now = time.monotonic()
        if self._yield_until_s is None:
            self._yield_until_s = self._next_pause_s(state) + 2 * (now - requested_s)
            self._last_turn = state.term
        return state.term == self._last_turn and now - self._started < self._yield_until_s

    def _next_pause_s(self, state: LeaseState) -> float:
        """Return how long processes that wait for this one sleep at most; 0 if none waits."""
        if not state.has_waiter:
            return 0.0
        holder = self._body(state)
        started = holder.get("started")
        if (holder.get("host"), holder.get("pid")) != (socket.gethostname(), os.getpid()):
            return 0.0
        turn_s = max(0.0, time.time() - started) if isinstance(started, int | float) else 0.0
        # Pauses grow by half each time, so the last one is half of the sum of all.
        return min(self._longest_pause_s, _FIRST_PAUSE_S + turn_s / 2) * _MAX_JITTER + _FIRST_PAUSE_S

    def pause(self, state: LeaseState) -> None:
        """Sleep a little; log from time to time which builder this waits for.

        Raises:
            LeaseError: if the time to wait is over.
        """
        self._yield_until_s = 0.0
        if state.term != self._paused_for_term:  # a new builder may be done soon, too
            self._paused_for_term, self._pause_s = state.term, _FIRST_PAUSE_S
            self._put_wait_mark(state)
        waited_s = time.monotonic() - self._started
        wait_s = self._policy.wait_s
        if wait_s is not None and waited_s >= wait_s:
            raise LeaseError(
                f"{self._key} is still being {self._participle} after waiting {waited_s:.0f} s: "
                f"{self._describe(state)}. "
                "Wait longer (wait_s), or end that process: its lease ends with it, or "
                f"{self._ttl_s(state):.0f} s after its last heartbeat. If neither helps, delete "
                f"{self._root.where(_names.leases(self._key))}/"
            )
        if waited_s >= self._log_at_s:
            _log.warning(
                "yogadl: waiting for %s, %s by %s, until %.0f s after its last heartbeat%s%s",
                self._key, self._participle, self._describe(state), self._ttl_s(state),
                "" if wait_s is None else f", {wait_s:.0f} s at most (wait_s)",
                note_if_this_process(self._body(state)),
            )  # fmt: skip
            self._log_at_s = waited_s + _LOG_EVERY_S
        self.sleep(None if wait_s is None else wait_s - waited_s)

    def sleep(self, at_most_s: float | None = None) -> None:
        """Sleep for a short time, longer at each call; at random, so that callers do not act in step."""
        pause_s = self._pause_s * random.uniform(2 - _MAX_JITTER, _MAX_JITTER)
        self._pause_s = min(self._pause_s * 1.5, self._longest_pause_s)
        time.sleep(pause_s if at_most_s is None else min(pause_s, at_most_s))

    @property
    def _longest_pause_s(self) -> float:
        return min(_LONGEST_PAUSE_S, self._policy.ttl_s / HEARTBEATS_PER_TTL)

    def _put_wait_mark(self, state: LeaseState) -> None:
        if self._takes_turns and not state.has_waiter:
            with contextlib.suppress(StorageError):  # without the mark this process may wait longer
                self._root.write(_names.lease(self._key, state.term) + _names.WAIT_SUFFIX, b"{}")

    def _ttl_s(self, state: LeaseState) -> float:
        return max(self._policy.ttl_s, ttl_of(self._body(state)))

    def _body(self, state: LeaseState) -> dict[str, Any]:
        if self._holder[0] != state.term or not self._holder[1]:
            name = _names.lease(self._key, state.term)
            self._holder = state.term, read_body(self._root, name)
        return self._holder[1]

    def _describe(self, state: LeaseState) -> str:
        holder = self._body(state)
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["started"]))
            who = f"process {holder['pid']} on {holder['host']} (since {since} by its clock"
        except (KeyError, TypeError, ValueError, OverflowError):
            return "another process"
        heartbeat = read_body(self._root, _names.lease(self._key, state.term) + _names.HEARTBEAT_SUFFIX)
        progress = heartbeat.get("progress")
        if isinstance(progress, dict) and isinstance(progress.get("records"), int):
            of = f" of {progress['total']}" if isinstance(progress.get("total"), int) else ""
            who += f", {progress['records']}{of} records so far"
        return printable(f"{who})")


def verbs(key: DatasetKey | _names.WholeDataset) -> tuple[str, str]:
    """Return the verb for the work of a lease's holder, and its participle."""
    return ("prune", "pruned") if isinstance(key, _names.WholeDataset) else ("build", "built")


def note_if_this_process(holder: dict[str, Any]) -> str:
    """Return an addition to a message about a builder if the builder is this very process, else "".

    A thread may wait for another thread's build. But a thread that a builder starts and joins would wait for
    ever. The two can't be distinguished: before Python 3.14, nothing records which thread started a thread.
    """
    if (holder.get("pid"), holder.get("host")) != (os.getpid(), socket.gethostname()):
        return ""
    return (
        ": this very process. If the builder has started the thread that waits here, and waits for that "
        "thread, this never ends: interrupt it, and read the data there without the cache"
    )


def read_body(root: BucketRoot, name: str) -> dict[str, Any]:
    """Return the document in a lease's object; an empty one if it does not exist or is no JSON object."""
    try:
        document = parse_json(root.read(name, _MAX_BODY_BYTES) or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def ttl_of(holder: dict[str, Any]) -> float:
    """Return the time to live that a lease's body gives; 0 if it gives none."""
    ttl_s = holder.get("ttl_s")
    return float(min(ttl_s, 2**62)) if isinstance(ttl_s, int | float) and ttl_s == ttl_s else 0.0
