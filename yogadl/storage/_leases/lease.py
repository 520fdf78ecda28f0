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
from yogadl.storage._leases.beat import Pulse, Task, end_later
from yogadl.storage._leases.right import LostRightError
from yogadl.storage._leases.terms import Terms
from yogadl.storage._leases.waiting import (
    BEATS_A_TTL,
    Sight,
    Waiting,
    read_body,
    ttl_of,
    verbs,
)

_log = logging.getLogger("yogadl")

_LONGEST_BEAT_S: Final = 20.0
_MOST_SHOWN: Final = 500


@dataclass(frozen=True)
class Leases:
    """The leases on building and pruning what is below the root of a bucket. Picklable.

    Args:
        bucket: The bucket.
        terms: How long who waits for whom.
    """

    bucket: Bucket
    terms: Terms

    @contextlib.contextmanager
    def held(self, key: DatasetKey, unless: Callable[[], bool] | None = None) -> Iterator["Lease | None"]:
        """Hold the right to build a version, waiting for whoever holds it now, or prunes the dataset.

        Whoever waits is told when it ends: by a failure of the block, too.

        Args:
            key: The version.
            unless: Asked while waiting; as soon as it says yes, ``None`` is given and nothing is held.

        Raises:
            LeaseError: if it takes longer than `terms` allow; says who holds it and how to clear it.
        """
        lease = self._acquired(key, unless)
        if lease is None:
            yield None
            return
        with _ended(lease):
            self._let_prune_end(key.id)  # only now: who begins to prune from here on sees our lease
            yield lease

    @contextlib.contextmanager
    def pruning(self, dataset_id: str, now: float) -> Iterator["Lease | None"]:
        """Hold the right to prune a dataset, or give ``None`` if somebody builds or prunes there.

        Args:
            dataset_id: The dataset.
            now: The time by the store's clock.
        """
        whole = _names.WholeDataset(dataset_id)
        sight = self._sight(whole)
        lease = None if self._held(dataset_id, now) else self._taken(whole, sight)
        if lease is None:
            yield None
            return
        with _ended(lease):
            # Only now: who begins to build from here on sees our lease, and waits.
            yield None if self.is_held(dataset_id, now) else lease

    def is_held(self, dataset_id: str, now: float) -> bool:
        """Return whether any version of a dataset has a builder who may be alive.

        Args:
            dataset_id: The dataset.
            now: The time by the store's clock.
        """
        return bool(self._held(dataset_id, now) - {_names.leases(_names.WholeDataset(dataset_id))})

    def _held(self, dataset_id: str, now: float) -> set[str]:
        """Return the folders of leases whose holders may be alive."""
        newest: dict[str, tuple[int, bool, float]] = {}
        for found in self.bucket.list(f"{dataset_id}/leases/"):
            split = _names.split_lease(found.name)
            if split is None:
                continue
            if split[1] == _names.WAIT:
                continue  # no sign of its builder's life
            version, epoch = found.name.rpartition("/")[0], split[0]
            before = newest.get(version, (0, False, 0.0))
            if epoch >= before[0]:
                is_same = epoch == before[0]
                has_ended = split[1] == _names.END or (is_same and before[1])
                newest[version] = epoch, has_ended, max(found.modified, before[2] if is_same else 0.0)
        held = set()
        for version, (epoch, has_ended, modified) in newest.items():
            if not has_ended:
                holder = read_body(self.bucket, f"{version}/{epoch:010d}")
                # Twice, since no waiter watched it: what is meant is surely dead, not likely so.
                if now - modified < 2 * max(self.terms.ttl_s, ttl_of(holder)):
                    held.add(version)
        return held

    def _let_prune_end(self, dataset_id: str) -> None:
        """Wait until nobody prunes the dataset; take the right from one that is dead, or it might wake up."""
        whole = _names.WholeDataset(dataset_id)

        def is_over() -> bool:
            return self._sight(whole).has_ended

        if not is_over():
            lease = self._acquired(whole, is_over)
            if lease is not None:
                lease.end(None)

    def _acquired(
        self, key: DatasetKey | _names.WholeDataset, unless: Callable[[], bool] | None
    ) -> "Lease | None":
        waiting = Waiting(self.bucket, self.terms, key, is_in_turn=unless is None)
        while True:
            asked = time.monotonic()
            sight = self._sight(key)
            # After the list: who ended by then has published by then.
            if unless is not None and unless():
                return None
            if sight.has_ended:
                waiting.tell_end(sight)
                if waiting.lets_others_go_first(sight, asked):
                    waiting.rest()
                    continue
            if sight.has_ended or waiting.is_dead(sight, asked):
                lease = self._taken(key, sight)
                if lease is not None:
                    return lease
                waiting.rest()
                continue
            waiting.pause(sight)

    def _sight(self, key: DatasetKey | _names.WholeDataset) -> Sight:
        sight, waited_for = Sight(), set()
        for found in self.bucket.list(f"{_names.leases(key)}/"):
            split = _names.split_lease(found.name)
            if split is None:
                continue
            epoch, ending = split
            if ending == _names.WAIT:  # which alone is no lease
                waited_for.add(epoch)
                continue
            if epoch > sight.epoch:
                sight = Sight(epoch, "", False)
            if epoch == sight.epoch:
                beat = found.tag if ending == _names.BEAT else sight.beat
                sight = Sight(epoch, beat, sight.has_ended or ending == _names.END)
        return replace(sight, is_waited_for=sight.epoch in waited_for)

    def _taken(self, key: DatasetKey | _names.WholeDataset, sight: Sight) -> "Lease | None":
        """Take the right after the one seen, unless somebody else does."""
        epoch, token = sight.epoch + 1, secrets.token_hex(16)
        holder = {
            "token": token,
            "id": key.id,
            "version": key.version,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
            "ttl_s": self.terms.ttl_s,
        }
        name = _names.lease(key, epoch)
        lease = Lease(self, key, epoch, token)
        # Before the lease is there: killed right after, this process could not tell anybody that it died.
        lease.start()
        is_taken = False
        try:
            is_taken = self.bucket.put_if_absent(name, json.dumps(holder).encode())
        except BaseException as error:
            lease.end_later(f"{type(error).__name__}: {error}", may_come=True)
            raise
        finally:
            if not is_taken:
                lease.drop()
        if not is_taken:
            return None
        try:
            if self._sight(key).epoch > epoch:
                # What was seen is long past: this epoch has been, and was cleared by a later builder.
                lease.drop()
                self.bucket.delete(name)
                return None
            for found in list(self.bucket.list(f"{_names.leases(key)}/")):
                split = _names.split_lease(found.name)
                if split is not None and split[0] < epoch:
                    self.bucket.delete(found.name)
        except BaseException as error:
            lease.end(f"{type(error).__name__}: {error}")
            raise
        return lease


@contextlib.contextmanager
def _ended(lease: "Lease") -> Iterator[None]:
    """Give a lease back at the end of a block, and tell those who wait how that ended."""
    try:
        yield
    except BaseException as error:
        lease.end(f"{type(error).__name__}: {error}")
        raise
    lease.end(None)


class Lease:
    """A right to build, or prune, that others take over if its holder gives no sign of life; see `Right`.

    Of no use after a fork. Made by `Leases.held`.
    """

    def __init__(self, leases: Leases, key: DatasetKey | _names.WholeDataset, epoch: int, token: str) -> None:
        self.epoch: int | None = epoch
        self._leases = leases
        self._key = key
        self._name = _names.lease(key, epoch)
        self._token = token
        self._pid = os.getpid()
        interval_s = min(leases.terms.ttl_s / BEATS_A_TTL, _LONGEST_BEAT_S)
        names = self._name, self._name + _names.BEAT, self._name + _names.END
        self._task = Task(leases.bucket, *names, token, interval_s)
        self._pulse: Pulse | None = None

    def start(self) -> None:
        """Begin to give signs of life."""
        self._pulse = Pulse(self._task)

    def drop(self) -> None:
        """Give no signs of life any more."""
        if self._pulse is not None:
            self._pulse.stop()

    def report(self, records: int, total: int | None, size_bytes: int) -> None:
        """Tell those who wait how far the build is."""
        if self._pulse is not None:
            self._pulse.report(records, total, size_bytes)

    def is_lost(self) -> bool:
        """Return whether somebody else has the right by now."""
        return self._leases._sight(self._key).epoch != self.epoch or not self._is_ours()

    def _is_ours(self) -> bool:
        """Return whether the lease that is there is still this one.

        Where all leases were pruned, a day after the last build, others may have begun to count anew.
        """
        return read_body(self._leases.bucket, self._name).get("token") == self._token

    def check(self) -> None:
        """Make sure that the right is still held.

        Raises:
            LostRightError: if somebody else has it.
        """
        if self.is_lost():
            do, _ = verbs(self._key)
            raise LostRightError(
                f"the right to {do} {self._key} went to somebody else, since this process gave no sign of "
                f"life for {self._leases.terms.ttl_s:.0f} s or more; {do} again, with a longer lease_ttl_s "
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
            self.drop()
            if not self._is_ours():
                return  # others have it, or have had it since
            self._leases.bucket.put(self._task.end_name, self._ending(failed))
        except BaseException as error:
            self.end_later(failed)
            if not isinstance(error, StorageError):
                raise  # as who waits for a store that is away interrupts that
            _log.warning(
                "yogadl: can't tell others that %s is built no more; it is tried for another %.0f s: %s",
                self._key, self._leases.terms.ttl_s, error,
            )  # fmt: skip

    def end_later(self, failed: str | None, *, may_come: bool = False) -> None:
        """Have another process write that it is over, as soon as it can; after a time to live all know.

        Args:
            failed: Why nothing was built, if so.
            may_come: Whether the lease may still appear: putting it failed, or so it was told.
        """
        end_later(self._task, self._ending(failed), self._leases.terms.ttl_s, may_come=may_come)

    def _ending(self, failed: str | None) -> bytes:
        return json.dumps({"token": self._token, "failed": failed and failed[:_MOST_SHOWN]}).encode()
