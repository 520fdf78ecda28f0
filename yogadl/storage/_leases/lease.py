"""Give the right to build, or to prune, to one of any number of machines, by nothing but put-if-absent.

See docs/protocol.md for the protocol and for what it promises.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from yogadl._key import DatasetKey
from yogadl.errors import StorageError
from yogadl.storage import _names
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._exclusion import LeaseLostError
from yogadl.storage._leases.heartbeat import Heartbeat, HeartbeatTask, end_in_background
from yogadl.storage._leases.policy import LeasePolicy
from yogadl.storage._leases.waiting import (
    HEARTBEATS_PER_TTL,
    LeaseState,
    LeaseWaiter,
    read_body,
    ttl_of,
    verbs,
)

_log = logging.getLogger("yogadl")

_MAX_INTERVAL_S: Final = 20.0
_MAX_MESSAGE_CHARS: Final = 500


@dataclass(frozen=True)
class Leases:
    """The leases on building and pruning what is below the root of a bucket. Picklable.

    Args:
        bucket: The bucket.
        terms: How long who waits for whom.
    """

    bucket: Bucket
    policy: LeasePolicy

    @contextlib.contextmanager
    def held(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator["BuildLease | None"]:
        """Hold the right to build a version, waiting for whoever holds it now, or prunes the dataset.

        Whoever waits is told when it ends: by a failure of the block, too.

        Args:
            key: The version.
            unless: Asked while waiting; as soon as it says yes, ``None`` is given and nothing is held.

        Raises:
            LeaseError: if it takes longer than `policy` allow; says who holds it and how to clear it.
        """
        lease = self._acquire(key, unless)
        if lease is None:
            yield None
            return
        with _released(lease):
            self._wait_for_pruning(key.id)  # only now: who begins to prune from here on sees our lease
            yield lease

    @contextlib.contextmanager
    def pruning(self, dataset_id: str, now: float) -> Iterator["BuildLease | None"]:
        """Hold the right to prune a dataset, or give ``None`` if somebody builds or prunes there.

        Args:
            dataset_id: The dataset.
            now: The time by the store's clock.
        """
        whole = _names.WholeDataset(dataset_id)
        state = self._state(whole)
        lease = None if self._live_folders(dataset_id, now) else self._try_acquire(whole, state)
        if lease is None:
            yield None
            return
        with _released(lease):
            # Only now: who begins to build from here on sees our lease, and waits.
            yield None if self.is_held(dataset_id, now) else lease

    def is_held(self, dataset_id: str, now: float) -> bool:
        """Return whether any version of a dataset has a builder who may be alive.

        Args:
            dataset_id: The dataset.
            now: The time by the store's clock.
        """
        return bool(self._live_folders(dataset_id, now) - {_names.leases(_names.WholeDataset(dataset_id))})

    def _live_folders(self, dataset_id: str, now: float) -> set[str]:
        """Return the folders of leases whose holders may be alive."""
        newest: dict[str, tuple[int, bool, float]] = {}
        for found in self.bucket.list(f"{dataset_id}/leases/"):
            split = _names.split_lease(found.name)
            if split is None:
                continue
            if split[1] == _names.WAIT:
                continue  # no sign of its builder's life
            version, term = found.name.rpartition("/")[0], split[0]
            before = newest.get(version, (0, False, 0.0))
            if term >= before[0]:
                is_same = term == before[0]
                has_ended = split[1] == _names.END or (is_same and before[1])
                newest[version] = term, has_ended, max(found.modified, before[2] if is_same else 0.0)
        held = set()
        for version, (term, has_ended, modified) in newest.items():
            if not has_ended:
                holder = read_body(self.bucket, f"{version}/{term:010d}")
                # Twice, since no waiter watched it: what is meant is surely dead, not likely so.
                if now - modified < 2 * max(self.policy.ttl_s, ttl_of(holder)):
                    held.add(version)
        return held

    def _wait_for_pruning(self, dataset_id: str) -> None:
        """Wait until nobody prunes the dataset; take the right from one that is dead, or it might wake up."""
        whole = _names.WholeDataset(dataset_id)

        def is_over() -> bool:
            return self._state(whole).has_ended

        if not is_over():
            lease = self._acquire(whole, is_over)
            if lease is not None:
                lease.end(None)

    def _acquire(
        self, key: DatasetKey | _names.WholeDataset, unless: Callable[[], bool] | None
    ) -> "BuildLease | None":
        waiting = LeaseWaiter(self.bucket, self.policy, key, takes_turns=unless is None)
        while True:
            requested_s = time.monotonic()
            state = self._state(key)
            # After the list: who ended by then has published by then.
            if unless is not None and unless():
                return None
            if state.has_ended:
                waiting.log_failure(state)
                if waiting.yields_turn(state, requested_s):
                    waiting.rest()
                    continue
            if state.has_ended or waiting.is_dead(state, requested_s):
                lease = self._try_acquire(key, state)
                if lease is not None:
                    return lease
                waiting.rest()
                continue
            waiting.pause(state)

    def _state(self, key: DatasetKey | _names.WholeDataset) -> LeaseState:
        state, waited_for = LeaseState(), set()
        for found in self.bucket.list(f"{_names.leases(key)}/"):
            split = _names.split_lease(found.name)
            if split is None:
                continue
            term, ending = split
            if ending == _names.WAIT:  # which alone is no lease
                waited_for.add(term)
                continue
            if term > state.term:
                state = LeaseState(term, "", False)
            if term == state.term:
                heartbeat = found.tag if ending == _names.HEARTBEAT else state.heartbeat
                state = LeaseState(term, heartbeat, state.has_ended or ending == _names.END)
        return replace(state, has_waiter=state.term in waited_for)

    def _try_acquire(self, key: DatasetKey | _names.WholeDataset, state: LeaseState) -> "BuildLease | None":
        """Take the right after the one seen, unless somebody else does."""
        term, token = state.term + 1, secrets.token_hex(16)
        holder = {
            "token": token,
            "id": key.id,
            "version": key.version,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
            "ttl_s": self.policy.ttl_s,
        }
        name = _names.lease(key, term)
        lease = BuildLease(self, key, term, token)
        # Before the lease is there: killed right after, this process could not tell anybody that it died.
        lease.start()
        is_taken = False
        try:
            is_taken = self.bucket.put_if_absent(name, json.dumps(holder).encode())
        except BaseException as error:
            lease.end_in_background(f"{type(error).__name__}: {error}", may_come=True)
            raise
        finally:
            if not is_taken:
                lease.stop_heartbeat()
        if not is_taken:
            return None
        try:
            if self._state(key).term > term:
                # What was seen is long past: this epoch has been, and was cleared by a later builder.
                lease.stop_heartbeat()
                self.bucket.delete(name)
                return None
            for found in list(self.bucket.list(f"{_names.leases(key)}/")):
                split = _names.split_lease(found.name)
                if split is not None and split[0] < term:
                    self.bucket.delete(found.name)
        except BaseException as error:
            lease.end(f"{type(error).__name__}: {error}")
            raise
        return lease


@contextlib.contextmanager
def _released(lease: "BuildLease") -> Iterator[None]:
    """Give a lease back at the end of a block, and tell those who wait how that ended."""
    try:
        yield
    except BaseException as error:
        lease.end(f"{type(error).__name__}: {error}")
        raise
    lease.end(None)


class BuildLease:
    """The exclusive build (or prune) of one key; another builder takes over when the heartbeat stops.

    Of no use after a fork. Made by `Leases.held`.
    """

    def __init__(self, leases: Leases, key: DatasetKey | _names.WholeDataset, term: int, token: str) -> None:
        self.term: int | None = term
        self._leases = leases
        self._key = key
        self._name = _names.lease(key, term)
        self._token = token
        self._pid = os.getpid()
        interval_s = min(leases.policy.ttl_s / HEARTBEATS_PER_TTL, _MAX_INTERVAL_S)
        names = self._name, self._name + _names.HEARTBEAT, self._name + _names.END
        self._task = HeartbeatTask(leases.bucket, *names, token, interval_s)
        self._heartbeat: Heartbeat | None = None

    def start(self) -> None:
        """Begin to give signs of life."""
        self._heartbeat = Heartbeat(self._task)

    def stop_heartbeat(self) -> None:
        """Give no signs of life any more."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def report(self, records: int, total: int | None, size_bytes: int) -> None:
        """Tell those who wait how far the build is."""
        if self._heartbeat is not None:
            self._heartbeat.report(records, total, size_bytes)

    def is_lost(self) -> bool:
        """Return whether somebody else has the right by now."""
        return self._leases._state(self._key).term != self.term or not self._is_ours()

    def _is_ours(self) -> bool:
        """Return whether the lease that is there is still this one.

        Where all leases were pruned, a day after the last build, others may have begun to count anew.
        """
        return read_body(self._leases.bucket, self._name).get("token") == self._token

    def check(self) -> None:
        """Make sure that the right is still held.

        Raises:
            LeaseLostError: if somebody else has it.
        """
        if self.is_lost():
            do, _ = verbs(self._key)
            raise LeaseLostError(
                f"the right to {do} {self._key} went to somebody else, since this process gave no sign of "
                f"life for {self._leases.policy.ttl_s:.0f} s or more; {do} again, with a longer lease_ttl_s "
                "if it was not stopped"
            )

    def end(self, failed: str | None) -> None:
        """Give the right back and tell those who wait.

        Args:
            failed: Why nothing was built, if so.
        """
        if os.getpid() != self._pid:
            return  # a child that inherited this by a fork holds nothing
        try:
            self.stop_heartbeat()
            if not self._is_ours():
                return  # others have it, or have had it since
            self._leases.bucket.put(self._task.end_name, self._ending(failed))
        except BaseException as error:
            self.end_in_background(failed)
            if not isinstance(error, StorageError):
                raise  # as who waits for a store that is away interrupts that
            _log.warning(
                "yogadl: can't tell others that %s is built no more; it is tried for another %.0f s: %s",
                self._key, self._leases.policy.ttl_s, error,
            )  # fmt: skip

    def end_in_background(self, failed: str | None, *, may_come: bool = False) -> None:
        """Have another process write that it is over, as soon as it can; after a time to live all know.

        Args:
            failed: Why nothing was built, if so.
            may_come: Whether the lease may still appear: putting it failed, or so it was told.
        """
        end_in_background(self._task, self._ending(failed), self._leases.policy.ttl_s, may_come=may_come)

    def _ending(self, failed: str | None) -> bytes:
        return json.dumps({"token": self._token, "failed": failed and failed[:_MAX_MESSAGE_CHARS]}).encode()
