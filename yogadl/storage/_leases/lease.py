"""Let one of any number of machines build, or prune, with put-if-absent as the only primitive.

The protocol and its guarantees are in docs/explanation/protocol.md.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from yogadl._core.key import DatasetKey
from yogadl.errors import LeaseError, StorageError
from yogadl.storage import _names
from yogadl.storage._catalogue.backend import BuildExclusion, Lease, LeaseLostError
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._files.root import Entry, Root
from yogadl.storage._leases.heartbeat import (
    HEARTBEATS_PER_TTL,
    Heartbeat,
    HeartbeatTask,
    LeaseState,
    LeaseWaiter,
    end_in_background,
    read_body,
    ttl_of,
    verbs,
)

_log = logging.getLogger("yogadl")

_MOST_REFUSALS: Final = 20  # attempts to put one term, each after listing the leases again
_MAX_INTERVAL_S: Final = 20.0
_MAX_MESSAGE_CHARS: Final = 500


@dataclass(frozen=True)
class Leases:
    """The leases on building and pruning below a root. Picklable, for the process of the heartbeat."""

    root: BucketRoot
    policy: Lease

    @contextlib.contextmanager
    def held(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator["BuildLease | None"]:
        """Hold the lease on a version, waiting for its builder or for a process that prunes the dataset.

        The end of the block, and its error if there is one, are written for waiting processes.

        Args:
            key: The version.
            unless: Called while waiting; once it returns true, the context manager gives ``None``, and holds
                no lease.

        Raises:
            LeaseError: if the wait takes longer than `policy` allows; the error names the holder, and how to
                clear its lease.
        """
        lease = self._acquire(key, unless)
        if lease is None:
            yield None
            return
        with _released(lease):
            self.wait_for_pruning(key.id)  # after acquiring: a prune that begins later sees this lease
            yield lease

    @contextlib.contextmanager
    def pruning(self, dataset_id: str, now: float) -> Iterator["BuildLease | None"]:
        """Hold the lease on pruning a dataset; give ``None`` if a process builds or prunes there.

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
            # Checked after acquiring: a builder that begins later sees this lease, and waits.
            yield None if self.is_held(dataset_id, now) else lease

    def is_held(self, dataset_id: str, now: float) -> bool:
        """Return whether any version of a dataset has a builder that may be alive; see `pruning`."""
        return bool(self._live_folders(dataset_id, now) - {_names.leases(_names.WholeDataset(dataset_id))})

    def _live_folders(self, dataset_id: str, now: float) -> set[str]:
        """Return the folders of leases whose holders may be alive."""
        newest: dict[str, tuple[int, bool, float]] = {}
        for entry, term, ending in self._objects(f"{dataset_id}/leases"):
            if ending == _names.WAIT_SUFFIX:
                continue  # written by a waiting process
            version = entry.name.rpartition("/")[0]
            earlier = newest.get(version, (0, False, 0.0))
            if term >= earlier[0]:
                is_same_term = term == earlier[0]
                has_ended = ending == _names.END_SUFFIX or (is_same_term and earlier[1])
                newest[version] = term, has_ended, max(entry.modified, earlier[2] if is_same_term else 0.0)
        live = set()
        for version, (term, has_ended, modified) in newest.items():
            if not has_ended:
                holder = read_body(self.root, f"{version}/{term:010d}")
                # Twice the time to live, since this process has not watched the heartbeat, and must be sure
                # that the holder is dead.
                if now - modified < 2 * max(self.policy.ttl_s, ttl_of(holder)):
                    live.add(version)
        return live

    def wait_for_pruning(self, dataset_id: str) -> None:
        """Wait until no process prunes the dataset.

        If the process that prunes is considered dead, its lease is taken over, since it might resume.
        """
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
        waiter = LeaseWaiter(self.root, self.policy, key, takes_turns=unless is None)
        refused_terms: list[int] = []
        while True:
            requested_s = time.monotonic()
            state = self._state(key)
            # Called after the list: a builder whose end is in the list has published its version before.
            if unless is not None and unless():
                return None
            if state.has_ended:
                waiter.log_failure(state)
                if waiter.yields_turn(state, requested_s):
                    waiter.sleep()
                    continue
            if state.has_ended or waiter.is_dead(state, requested_s):
                lease = self._try_acquire(key, state)
                if lease is not None:
                    return lease
                refused_terms.append(state.term + 1)
                if refused_terms.count(state.term + 1) > _MOST_REFUSALS:
                    raise LeaseError(
                        f"{self.root.where(_names.lease(key, state.term + 1))} can't be written: something "
                        "else has that name, although the store does not list it; remove it, then "
                        f"{verbs(key)[0]} again"
                    )
                waiter.sleep()
                continue
            waiter.pause(state)

    def _state(self, key: DatasetKey | _names.WholeDataset) -> LeaseState:
        """Return the state of the newest lease of a key, from a list of the objects of its leases."""
        state, waited_for = LeaseState(), set()
        for entry, term, ending in self._objects(_names.leases(key)):
            if ending == _names.WAIT_SUFFIX:  # a mark alone is no lease
                waited_for.add(term)
                continue
            if term > state.term:
                state = LeaseState(term, "", False)
            if term == state.term:
                heartbeat = entry.tag if ending == _names.HEARTBEAT_SUFFIX else state.heartbeat
                state = LeaseState(term, heartbeat, state.has_ended or ending == _names.END_SUFFIX)
        return replace(state, has_waiter=state.term in waited_for)

    def _objects(self, below: str) -> Iterator[tuple[Entry, int, str]]:
        """Yield the objects of leases below a folder, each with its term and the ending of its name."""
        for entry in self.root.entries(below):
            split = _names.split_lease(entry.name)
            if split is not None:
                yield entry, *split

    def _try_acquire(self, key: DatasetKey | _names.WholeDataset, state: LeaseState) -> "BuildLease | None":
        """Put the lease of the term after `state`, unless another process puts it first."""
        if state.term >= _names.MAX_TERM_OR_MOVE:
            raise LeaseError(
                f"{self.root.where(_names.lease(key, state.term))} has the highest possible number, "
                "which yogadl never reaches: another program wrote it. Make sure that no process builds, "
                f"delete it, then {verbs(key)[0]} again"
            )
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
        # The heartbeat starts before the lease is put, so that it reports a death right after the put.
        lease = BuildLease(self, key, term, token)
        is_taken = False
        try:
            is_taken = self.root.write_if_absent(name, json.dumps(holder).encode())
        except BaseException as error:
            lease.end_in_background(f"{type(error).__name__}: {error}", may_appear=True)
            raise
        finally:
            if not is_taken:
                lease.stop_heartbeat()
        if not is_taken:
            return None
        try:
            if self._state(key).term > term:
                # `state` was outdated: this term was held before, and a later builder has removed its
                # objects.
                lease.stop_heartbeat()
                self.root.remove(name)
                return None
            for entry, old_term, _ in list(self._objects(_names.leases(key))):
                if old_term < term:
                    self.root.remove(entry.name)
        except BaseException as error:
            lease.end(f"{type(error).__name__}: {error}")
            raise
        return lease


@contextlib.contextmanager
def _released(lease: "BuildLease") -> Iterator[None]:
    """Release a lease at the end of a block, and write how the block ended for waiting processes."""
    try:
        yield
    except BaseException as error:
        lease.end(f"{type(error).__name__}: {error}")
        raise
    lease.end(None)


class BuildLease:
    """The right to build (or prune) one key; another builder takes over when the heartbeat stops.

    Useless after a fork. Made by `Leases.held`.
    """

    def __init__(self, leases: Leases, key: DatasetKey | _names.WholeDataset, term: int, token: str) -> None:
        self.term: int | None = term
        self._leases = leases
        self._key = key
        self._name = _names.lease(key, term)
        self._token = token
        self._pid = os.getpid()
        interval_s = min(leases.policy.ttl_s / HEARTBEATS_PER_TTL, _MAX_INTERVAL_S)
        names = self._name, self._name + _names.HEARTBEAT_SUFFIX, self._name + _names.END_SUFFIX
        self._task = HeartbeatTask(leases.root, *names, token, interval_s)
        self._heartbeat = Heartbeat(self._task)
        self.report = self._heartbeat.report

    def stop_heartbeat(self) -> None:
        """Stop the heartbeat."""
        self._heartbeat.stop()

    def is_lost(self) -> bool:
        return self._leases._state(self._key).term != self.term or not self._is_ours()

    def _is_ours(self) -> bool:
        """Return whether the lease of this term is still this one.

        Leases are pruned a day after the last build; after that, terms begin at 1 again.
        """
        return read_body(self._leases.root, self._name).get("token") == self._token

    def check(self) -> None:
        if self.is_lost():
            verb, ttl_s = verbs(self._key)[0], self._leases.policy.ttl_s
            raise LeaseLostError(
                f"another process has taken over the lease to {verb} {self._key}, since this one had no "
                f"heartbeat for {ttl_s:.0f} s or more; {verb} again, with a longer Lease(ttl_s=) if this "
                "process was not paused"
            )

    def end(self, failed: str | None) -> None:
        """Release the lease, and write its end for waiting processes.

        Args:
            failed: The reason why nothing was built, if so.
        """
        if os.getpid() != self._pid:
            return  # a forked child does not hold its parent's lease
        try:
            if self._is_ours():  # otherwise another builder has taken over
                self._leases.root.write(self._task.end_name, self._ending(failed))
        except BaseException as error:
            self.end_in_background(failed)
            if not isinstance(error, StorageError):
                raise  # for example KeyboardInterrupt during retries
            _log.warning(
                "yogadl: can't write that the build of %s has ended, which other builders wait for; trying "
                "for another %.0f s: %s",
                self._key, self._leases.policy.ttl_s, error,
            )  # fmt: skip
        finally:
            self.stop_heartbeat()  # last: until then it ends the lease if this process is killed

    def end_in_background(self, failed: str | None, *, may_appear: bool = False) -> None:
        """Let another process write the end of the lease, with retries for one time to live.

        Args:
            failed: The reason why nothing was built, if so.
            may_appear: Whether the lease may still appear, because its put failed but may take effect later.
        """
        end_in_background(self._task, self._ending(failed), self._leases.policy.ttl_s, may_appear=may_appear)

    def _ending(self, failed: str | None) -> bytes:
        return json.dumps({"token": self._token, "failed": failed and failed[:_MAX_MESSAGE_CHARS]}).encode()


class LeaseCoordinator:
    """Exclude other builders below a root that machines share. Implements `BuildCoordinator`.

    Args:
        root: The root.
        leases: The leases below the same root.
        probe: Called once before the first lease; raises if the store ignores conditional writes. Picklable.
        changed: Called with the version after each attempt to build it, successful or not. Picklable.
    """

    def __init__(
        self,
        root: Root,
        leases: Leases,
        *,
        probe: Callable[[], object] | None = None,
        changed: Callable[[DatasetKey], object] | None = None,
    ) -> None:
        self.leases = leases
        self._root = root
        self._probe = probe
        self._is_probed = False
        self._changed = changed

    def __reduce__(self) -> Any:
        return partial(LeaseCoordinator, probe=self._probe, changed=self._changed), (
            self._root,
            self.leases,
        )

    @contextmanager
    def building(
        self, key: DatasetKey, unless: Callable[[], bool] | None = None
    ) -> Iterator[BuildExclusion | None]:
        self._probe_once()
        with self.leases.held(key, unless) as lease:
            try:
                yield lease
            finally:
                if self._changed is not None:
                    self._changed(key)

    @contextmanager
    def pruning(self, dataset_id: str) -> Iterator[BuildExclusion | None]:
        self._probe_once()
        with self.leases.pruning(dataset_id, self._root.now()) as lease:
            yield lease

    def wait_for_pruning(self, dataset_id: str) -> None:
        self._probe_once()
        self.leases.wait_for_pruning(dataset_id)

    def _probe_once(self) -> None:
        if self._probe is not None and not self._is_probed:
            self._probe()
            self._is_probed = True

    def has_builder(self, dataset_id: str) -> bool:
        return self.leases.is_held(dataset_id, self._root.now())
