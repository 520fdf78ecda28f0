"""Write the partitions of a build, each apart from the others, and publish them as one cache."""

import concurrent.futures
import hashlib
import itertools
import json
import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from yogadl._key import DatasetKey
from yogadl._progress import Progress
from yogadl._sources import Source
from yogadl._spec import Spec
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    DatasetNotFoundError,
    UnsupportedDataError,
)
from yogadl.storage import _names
from yogadl.storage._backend import Backend
from yogadl.storage._build import Build, content_of, describe_machine, note_version, require_like
from yogadl.storage._exclusion import BuildExclusion
from yogadl.storage._exclusive import exclusive_build
from yogadl.storage._keeping import clear_spent
from yogadl.storage._partition_receipts import WrittenPartition, missing_and_foreign, not_complete
from yogadl.storage._publish import Content, clear_attempt, publish, put_aside
from yogadl.storage._receipts import Receipt, Receipts
from yogadl.storage._shares import Only, Shares

_log = logging.getLogger("yogadl")

# Receipts are read so many at a time from a bucket, where each takes a few round trips.
_READERS: Final = 16
_DIGITS: Final = 32  # of a hash in a receipt


@dataclass(frozen=True)
class Partitions:
    """The partitions of a build. Picklable, if what they are read from is; writing one again does no harm.

    Args:
        backend: Where the cache will be.
        key: Which it will be.
        count: How many there are.
        run: What tells this build from others of the same key.
        shares: What to read, if that is known: a share for each partition.
        origin: The hash of what decides the records of those; empty where that has to be compared.
        is_shared_out: Whether all are written for one process, which holds the right to build. Then what was
            written of other records is written anew.
        is_named: Whether the run was named by who begins it, not after what the source is.
    """

    backend: Backend
    key: DatasetKey
    count: int
    run: str
    shares: Shares | Only | None = None
    origin: str = ""
    is_shared_out: bool = False
    is_named: bool = False

    @property
    def where(self) -> str:
        """The folder of their receipts, by name."""
        if self.is_shared_out:
            return _names.shared_out(self.key, self.run)
        return _names.partitioned(self.key, self.run, self.count)

    def _receipt(self, partition: int) -> str:
        return f"{self.where}/{partition:08d}.json"

    def is_written(self, partition: int) -> bool:
        """Return whether a partition has a receipt."""
        return self.backend.root.size(self._receipt(partition)) is not None

    def write_share(
        self, partition: int, part_bytes: int | None, progress: Progress | None = None
    ) -> list[Receipt]:
        """Write a partition's share of the source, unless that is written; return the receipts of its parts.

        Raises:
            ConfigurationError: if it was written from other records than the source has.
        """
        assert self.shares is not None
        share = self.shares[partition]
        found = self._read(partition)
        is_other = found is not None and found.made_by != self._made_by
        if found is not None and is_other:
            _log.warning(
                "yogadl: %s: %s was written by other code, arguments or values: it is written again",
                self.key, self.described(partition),
            )  # fmt: skip
        elif found is not None:
            is_like = not share.can_compare or self._agree(found.receipts, share.source())
            if found.stamp == share.stamp and is_like:
                return found.receipts
            if not self.is_shared_out:
                raise ConfigurationError(
                    f"{self.key}: {self.described(partition)} was written from other records than this task "
                    "has; do all tasks read the same data? With another run all partitions are written again"
                )
            self.backend.root.remove(self._receipt(partition))
        try:
            stamp = share.stamp  # before it is opened: whoever changes it meanwhile is found out
            return self.write(partition, share.source(), stamp, part_bytes, progress, replaces=is_other)
        except Exception as error:
            error.add_note(f"in {self.described(partition)}")
            raise

    def described(self, partition: int) -> str:
        """Return what a person would call a partition's share."""
        what = str(self.shares[partition]) if self.shares is not None else ""
        return f"partition {partition} of {self.count}" + (f" ({what})" if what else "")

    def _agree(self, receipts: Sequence[Receipt], source: Source | None) -> bool:
        if source is None or not receipts:
            return source is None and not receipts
        kept = Receipts(self.backend.root, self.key, self.where, source, {}, self.origin)
        return sum(receipt.part.index.records for receipt in receipts) == source.length and kept.agree(
            receipts
        )

    def write(
        self,
        partition: int,
        source: Source | None,
        stamp: str,
        part_bytes: int | None,
        progress: Progress | None,
        *,
        replaces: bool = False,
    ) -> list[Receipt]:
        """Write a partition, whatever is there; the first to end counts.

        Args:
            partition: Its number.
            source: What to read; ``None`` for no records.
            stamp: What its share says of itself.
            part_bytes: How large one file may get.
            progress: As for a build.
            replaces: Whether its receipt takes the place of one that is there.
        """
        receipts: list[Receipt] = []
        root = self.backend.root
        where = f"{self.where}/{partition:08d}-{secrets.token_hex(8)}"
        if source is not None:
            receipts = Build(root, self.key, part_bytes, progress, noted=self._noted).run(source, where)
        else:
            note_version(root, self.key)
        put = root.write if replaces else root.write_if_absent
        put(self._receipt(partition), WrittenPartition(self._made_by, stamp, receipts).to_bytes())
        if source is not None:
            root.remove_folder(where)  # only now: what no receipt names would never be found
        return receipts

    def _noted(self) -> None:
        """See to it that nobody prunes the part that was noted just now, and is to be put in its place.

        A task holds no right. Who prunes later sees the note; who prunes now may have seen a part of the same
        bytes, which nothing named. One process that has all partitions written excludes both.
        """
        if not self.is_shared_out:
            self.backend.coordinator.wait_for_pruning(self.key.id)

    def receipts(self, stamps: Sequence[str] = ()) -> list[Receipt]:
        """Return the receipts of all parts, in order.

        Args:
            stamps: What the shares say of themselves now, where that is compared.

        Raises:
            ConfigurationError: if a partition is not written yet, or its parts are gone by now.
        """
        if self.backend.root.bucket is None:
            written = list(map(self._read, range(self.count)))
        else:
            with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
                written = list(pool.map(self._read, range(self.count)))
        self._require_all(written)
        self._check(written, stamps)
        receipts = list(itertools.chain.from_iterable(one.receipts for one in written if one is not None))
        firsts = itertools.accumulate((receipt.part.index.records for receipt in receipts), initial=0)
        if not receipts:
            raise UnsupportedDataError(f"{self.key}: no partition has any records")
        return [
            Receipt(first, receipt.part, receipt.spec)
            for first, receipt in zip(firsts, receipts, strict=False)
        ]

    def _require_all(self, written: Sequence[WrittenPartition | None]) -> None:
        """Refuse to publish without a partition, or with one of other code, arguments or values.

        Raises:
            ConfigurationError: names what has to be written again.
        """
        missing, foreign = missing_and_foreign(written, self._made_by)
        if not missing and not foreign:
            return
        named = self._by_name(sorted(missing + foreign))
        others = self.others() if missing else ""
        raise ConfigurationError(f"{self.key}: {not_complete(self.count, missing, foreign, named, others)}")

    @property
    def _made_by(self) -> str:
        """The hash of what decides the records, where the run's name does not tell; empty if it is not known.

        With the bounds of the shares: they are other ones once the source has another length.
        """
        if not self.is_named or self.shares is None or isinstance(self.shares, Only):
            return ""
        described = [self.origin, self.shares.terms()]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:_DIGITS]

    def note_tasks(self, count: int) -> None:
        """Note that so many tasks write every so-manieth partition each, for who is told what is missing."""
        note_version(self.backend.root, self.key)
        self.backend.root.write(self._tasks, str(count).encode())

    @property
    def _tasks(self) -> str:
        return f"{self.where}/tasks"

    def _by_name(self, partitions: Sequence[int]) -> str:
        """Name partitions, or the tasks that write them, if it is known how many there are."""
        found = re.fullmatch(rb"[1-9][0-9]{0,9}", self.backend.root.read(self._tasks) or b"")
        names = list(map(str, partitions))
        if found:
            count = int(found[0])
            names = [f"{k + 1}/{count}" for k in sorted({number % count for number in partitions})]
        shown = ", ".join(names[:10]) + (", ..." if names[10:] else "")
        return f"run the tasks {shown}" if found else f"[{shown}]"

    def _check(self, written: Sequence[WrittenPartition | None], stamps: Sequence[str]) -> None:
        """Refuse partitions that do not fit together, or whose files have changed since.

        Raises:
            ConfigurationError: if a file has changed.
            UnsupportedDataError: if structures or dtypes differ.
        """
        anew = "" if self.is_shared_out else "; with another run all partitions are written again"
        first: Spec | None = None
        for number, found in enumerate(written):
            if found is None:
                continue
            what = f"{self.key}: {self.described(number)} has"
            if stamps and stamps[number] not in ("", found.stamp):
                raise ConfigurationError(f"{what} changed since it was written{anew}")
            for receipt in found.receipts:
                first = first or receipt.spec
                require_like(first, receipt.spec, what, anew)

    def others(self) -> str:
        """Name other runs of this version, if there are any: a task may have been one of those."""
        below = _names.builds(self.key)
        names = self.backend.root.names(below, ".json")
        receipts = [name for name in names if name.count("/") == below.count("/") + 2]
        runs = {_names.split_attempt(self.key.id, name)[1] for name in receipts}
        others = sorted(run for run in runs if _names.is_partitioned(run) and not self.where.endswith(run))
        return ", ".join(others[:3])

    def _read(self, partition: int) -> WrittenPartition | None:
        """Return the receipt of a partition; ``None`` if it is to be written, or written anew."""
        root, name = self.backend.root, self._receipt(partition)
        content = root.read(name)
        if content is None:
            return None
        try:
            return WrittenPartition.from_bytes(content, root, self.key.id, self.origin)
        except (ValueError, CacheFormatError) as error:
            # A prune with a short grace may have taken them; with the receipt, none would be written again.
            _log.warning("yogadl: %s: partition %d must be written again: %s", self.key, partition, error)
            root.remove(name)
            return None

    def commit(self, builder: dict[str, Any], *, replaces: bool = True) -> bool:
        """Publish the cache, and say what built it; return whether this call did.

        Args:
            builder: What a manifest is to say of that, beside run and machine.
            replaces: Whether it takes the place of a version that is there.

        Raises:
            ConfigurationError: if a partition is not written yet.
            UnsupportedDataError: if partitions have different structures.
        """
        machine, stamps = describe_machine(), self._stamps()
        made_of = self._made_of(stamps)
        if made_of:
            machine["made_of"] = made_of
        aside = _names.unresumable(self.key, secrets.token_hex(8))
        with exclusive_build(self.backend, self.key) as exclusion:
            try:
                receipts = self.receipts(stamps)
            except ConfigurationError:
                # Once published, the receipts are cleared away, and a run that is named after the source has
                # another name. One that was named by the user is no other, whatever that was made of.
                if self.is_published("" if self.is_named else made_of):
                    return False
                raise
            is_new = self.publish(
                content_of(receipts), machine | builder, exclusion, replaces=replaces, aside=aside
            )
        clear_spent(self.backend, self.key.id, aside)
        return is_new

    @property
    def _named(self) -> dict[str, Any]:
        return {"partitions": self.count, "run": self.run}

    def is_published(self, made_of: str = "") -> bool:
        """Return whether this run has become the version, or another one that was made of the same."""
        try:
            builder = self.backend.catalogue.published(self.key).manifest.builder
        except (DatasetNotFoundError, CacheFormatError):
            return False
        is_same = bool(made_of) and builder.get("made_of") == made_of
        return is_same or builder.items() >= self._named.items()

    def _stamps(self) -> list[str]:
        """Return what each share says of itself now; nothing if they are not known."""
        if self.shares is None or isinstance(self.shares, Only):
            return []
        return [self.shares[number].stamp for number in range(self.count)]

    def _made_of(self, stamps: Sequence[str]) -> str:
        """Return the hash of what the partitions are read from, as it is now; empty if that is not known."""
        if not self.origin or self.shares is None or isinstance(self.shares, Only):
            return ""
        described = [self.origin, self.shares.terms(), stamps]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def publish(
        self,
        content: Content,
        builder: dict[str, Any],
        exclusion: BuildExclusion,
        *,
        replaces: bool,
        aside: str,
    ) -> bool:
        """Publish what was made of the receipts; return whether that is there now.

        Args:
            content: What was made of the receipts of all parts, and perhaps of others before them.
            builder: What the manifest says of who built it, beside run and number of partitions.
            exclusion: Held by the caller.
            replaces: Whether it takes the place of a version that is there.
            aside: The folder of an attempt of the caller's that is over: see `put_aside`.
        """
        root = self.backend.root
        builder = builder | self._named
        if not publish(root, self.key, content, builder, exclusion=exclusion, replaces=replaces):
            return False
        # Notes of tasks that did not end, or whose twins were faster: their parts are named by nothing else.
        put_aside(root, self.where, aside, depth=1)
        clear_attempt(root, self.key, self.where)
        return True

    def only(self, partition: int) -> "Partitions":
        """Return what a task needs that writes this partition, and no more."""
        assert self.shares is not None and not isinstance(self.shares, Only)
        return replace(self, shares=Only(self.shares, partition))

    def put_others_aside(self) -> None:
        """See to it that what other builds of this version have left, by other code say, is cleared."""
        root = self.backend.root
        names = root.names(_names.builds(self.key), ".json")
        for run in {_names.split_attempt(self.key.id, name)[1] for name in names}:
            where = f"{_names.builds(self.key)}/{run}"
            if _names.is_shared_out(run) and where != self.where:
                put_aside(root, where, _names.unresumable(self.key, secrets.token_hex(8)))
