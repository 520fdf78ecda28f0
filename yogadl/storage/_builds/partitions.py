"""Write the partitions of a build independently of each other, and publish them as one cache.

A task that has written a partition leaves a *receipt*, a small file that names the partition's parts. The
commit publishes the cache once each partition has a receipt that it can use.
"""

import concurrent.futures
import hashlib
import itertools
import json
import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from yogadl._core.progress import Progress
from yogadl._core.spec import Spec
from yogadl._format.codec import codec_in_words, described
from yogadl._format.manifest import CODEC, LEFT_OUT
from yogadl._sources.partitioned import Partition
from yogadl._sources.sources import ItemsSource, IterableSource, ReadOnce, Source, open_if_any
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    DatasetNotFoundError,
    UnsupportedDataError,
)
from yogadl.storage import _names
from yogadl.storage._builds.build import (
    Build,
    PartOptions,
    Receipt,
    WrittenParts,
    content_of,
    describe_machine,
    have_same_records,
    require_like,
)
from yogadl.storage._builds.dictionaries import Dictionaries
from yogadl.storage._builds.left_out import LeftOut, refuse_other_metadata, with_metadata
from yogadl.storage._builds.publish import put_aside
from yogadl.storage._builds.shares import RangeShare, Share
from yogadl.storage._keeping import clear_unresumable
from yogadl.storage._leases.locks import exclusive_build

_log = logging.getLogger("yogadl")

# The threads that read receipts from a bucket, where each receipt takes a few round trips.
_READERS: Final = 16
_DIGITS: Final = 32  # of the hash in a receipt
_STRUCTURE: Final = "structure"  # the file in a run's folder that says what all its partitions have


@dataclass(frozen=True)
class InPartitions(Build):
    """A build of partitions that are written independently of each other, each with a receipt."""

    is_by_tasks: ClassVar[bool] = False
    """Whether tasks write the partitions, which hold no right to build.

    Otherwise all partitions are written for one process that holds it. A partition that was written from
    other records is then written again, instead of being an error.
    """

    def _receipt_name(self, partition: int) -> str:
        return f"{self.folder}/{partition:08d}.json"

    def write_records(
        self,
        partition: int,
        records: Any,
        *,
        part_bytes: int | None,
        progress: Progress | None = None,
        allow_pickle: bool = False,
    ) -> None:
        """Write a partition of these records, unless it has a receipt of the same codec."""
        is_there = self.backend.root.size(self._receipt_name(partition)) is not None
        written = self._read(partition) if is_there else None
        if written is None or self._how_else(written):
            forms = replace(self.forms, allow_pickle=allow_pickle or self.forms.allow_pickle)
            like = self._agreed(None)
            source = open_if_any(records, replace(forms, like=like))
            if like is None and source is not None and source.is_open:
                like = self._agreed(source.spec)
                if like is not None and not like.is_like(source.spec):
                    raise ConfigurationError(
                        f"{self.key}: partition {partition} of {self.count} was opened while another one "
                        "decided how the values of all are stored: write it again"
                    )
            self.write(partition, source, "", part_bytes, progress, replaces=written is not None)

    def write_share(
        self,
        partition: int,
        part_bytes: int | None,
        progress: Progress | None = None,
        share: Share | None = None,
    ) -> list[Receipt]:
        """Write a partition's share of the source, unless it is written; return the receipts of its parts.

        Args:
            partition: The number of the partition.
            part_bytes: The largest size of a part.
            progress: As for a build.
            share: The share, if this build has no other shares.

        Raises:
            ConfigurationError: if the partition was written from other records than the source has.
        """
        if share is None:
            assert self.shares is not None
            share = self.shares[partition]
        written = self._read(partition)
        other = "" if written is None else self._how_else(written)
        if other:
            _log.warning(
                "yogadl: %s: %s was written %s: it is written again",
                self.key, self.described(partition, share), other,
            )  # fmt: skip
        elif written is not None:
            # Of a partition, only the stamp is compared.
            is_like = isinstance(share, Partition) or self._has_same_records(written, share.source())
            if written.facts["stamp"] == share.stamp and is_like:
                return written.receipts
            if self.is_by_tasks:
                raise ConfigurationError(
                    f"{self.key}: {self.described(partition, share)} was written from other records than "
                    "this task has; do all tasks read the same data? To write all partitions again, give "
                    "another run"
                )
            self.backend.root.remove(self._receipt_name(partition))
        try:
            stamp = share.stamp  # before the share is opened, so that a change during the read is detected
            if self.is_by_tasks and self.shares is not None:
                self.train_dictionaries(self.shares.source)
            source = self._opened(partition, share)
            return self.write(partition, source, stamp, part_bytes, progress, replaces=other != "")
        except Exception as error:
            error.add_note(f"in {self.described(partition, share)}")
            raise

    def _opened(self, partition: int, share: Share) -> Source | None:
        """Open a share; what lists, missing values and numbers are is decided by the first of all records."""
        if not isinstance(share, Partition):
            return share.source()
        try:
            source = share.source()
            found = None if source is None else source.spec
        except UnsupportedDataError:  # its records alone may not show what others do
            like = None if partition == 0 else self._agreed(None)
            if like is None and partition and self.shares is not None:
                like = self._agreed(self.shares.source.spec)
            if like is None:
                raise
            return share.source(like)
        if source is None or not isinstance(source, IterableSource | ItemsSource):
            return source
        like = self._agreed(found if partition == 0 and source.is_open else None)
        if like is None and source.is_open and self.shares is not None:
            like = self._agreed(self.shares.source.spec)
        return source if like is None or like.is_like(source.spec) else share.source(like)

    def _agreed(self, found: Spec | None) -> Spec | None:
        """Return the structure that all partitions of this run have; the first that is found is kept.

        Args:
            found: The structure to keep if there is none yet; ``None`` to ask only.
        """
        made_by = self._made_by  # other code or values of a run that is named decide anew
        name = f"{self.folder}/{_STRUCTURE}" + (f"-{made_by}" if made_by else "")
        content = self.backend.root.read(name)
        if content is None and found is not None:
            self._note_version()
            self.backend.root.write_if_absent(name, json.dumps(found.to_json()).encode())
            content = self.backend.root.read(name)
        return found if content is None else Spec.from_json(json.loads(content))

    def described(self, partition: int, share: Share | None = None) -> str:
        """Return a description of a partition and its share for messages."""
        if share is None and self.shares is not None:
            share = self.shares[partition]
        what = "" if share is None else str(share)
        return f"partition {partition} of {self.count}" + (f" ({what})" if what else "")

    def _has_same_records(self, written: WrittenParts, source: Source | None) -> bool:
        receipts = written.receipts
        if self.is_skipping:  # the records can't be compared, since their numbers differ
            return bool(self.origin) and LEFT_OUT in written.facts
        if source is None or not receipts:
            return source is None and not receipts
        records = sum(receipt.part.index.records for receipt in receipts)
        return records == source.length and have_same_records(receipts, source, self.origin)

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
        """Write a partition, whether or not it is written; the first receipt counts.

        Args:
            partition: Its number.
            source: The source, or ``None`` for no records.
            stamp: The stamp of its share.
            part_bytes: The largest size of a part.
            progress: As for a build.
            replaces: Whether its receipt replaces an existing one.
        """
        root = self.backend.root
        self._note_version()
        left_out = LeftOut()
        if self.is_skipping and isinstance(source, RangeShare):
            source = ReadOnce.if_any(source.spec, source.readable_chunks(left_out.note))
        folder = f"{self.folder}/{partition:08d}-{secrets.token_hex(8)}"
        receipts = (
            [] if source is None else self.write_parts(source, folder, PartOptions(part_bytes, progress))
        )
        put = root.write if replaces else root.write_if_absent
        facts: dict[str, Any] = {"made_by": self._made_by, "stamp": stamp, CODEC: self._codec_in_json}
        if self.is_skipping:
            facts[LEFT_OUT] = left_out.to_json()
        written = WrittenParts(receipts, facts)
        put(self._receipt_name(partition), written.to_bytes())
        if receipts:
            # Removed last: until the partition has a receipt, the receipts there alone name its parts.
            root.remove_folder(folder)
        return receipts

    def train_dictionaries(self, whole: Source) -> None:
        """Train dictionaries on all of a source, if that is possible, before its shares are written."""
        dictionaries = Dictionaries(self.backend.root, self.key, self.folder)
        dictionaries.train_ahead(whole, self.codec, reads_twice=True)

    def written(self) -> list[WrittenParts | None]:
        """Return the content of each partition's receipt; ``None`` if it must be written (again)."""
        if self.backend.root.promises.renames:  # a file is read in less time than a thread takes to begin
            return list(map(self._read, range(self.count)))
        with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(self._read, range(self.count)))

    def receipts(self, written: Sequence[WrittenParts | None], stamps: Sequence[str] = ()) -> list[Receipt]:
        """Return the receipts of all parts, in order.

        Args:
            written: What `written` returned.
            stamps: The stamps of the shares now; empty if they are not compared.

        Raises:
            ConfigurationError: if a partition is not written yet, or its parts do not exist any more.
        """
        self._require_all(written)
        self._require_codec(written)
        self._refuse_unlike(written, stamps)
        receipts = list(itertools.chain.from_iterable(one.receipts for one in written if one is not None))
        firsts = itertools.accumulate((receipt.part.index.records for receipt in receipts), initial=0)
        if not receipts:
            raise UnsupportedDataError(f"{self.key}: no partition has any records, as {self.described(0)}")
        return [
            Receipt(first, receipt.part, receipt.spec)
            for first, receipt in zip(firsts, receipts, strict=False)
        ]

    def _require_all(self, written: Sequence[WrittenParts | None]) -> None:
        """Refuse to publish without a partition, or with one of other code, arguments or values.

        Raises:
            ConfigurationError: if there is such a partition; the error names the partitions to write again.
        """
        missing = [number for number, one in enumerate(written) if one is None]
        makers = {number: _made_by(one) for number, one in enumerate(written) if one is not None}
        own = self._made_by
        expected = own or next(filter(None, makers.values()), "")
        foreign = [number for number, maker in makers.items() if maker != expected and (maker or own)]
        if not missing and not foreign:
            return
        reasons = {
            "are not written yet": missing,
            "were written by other code, arguments or values than the commit has": foreign,
        }
        message = ", and ".join(
            f"{len(numbers)} of {self.count} partitions {reason}"
            for reason, numbers in reasons.items()
            if numbers
        )
        message += f": {self._name_to_write_again(sorted(missing + foreign))}"
        if len(missing) == self.count:
            message = f"none of {self.count} partitions is written yet"
        if foreign:
            message += ", then commit again"
        others = self.others() if missing else ""
        if others:
            message += (
                "; other partitions of this version were written by tasks of other code, arguments or "
                f"source, or another run: {others}"
            )
        raise ConfigurationError(f"{self.key}: {message}")

    @property
    def _codec_in_json(self) -> Any:
        """How values are compressed, as a receipt has it."""
        return json.loads(json.dumps(described(self.codec)))

    def _has_other_codec(self, written: WrittenParts) -> bool:
        """Return whether a partition was written with another codec; of older receipts that is not known."""
        own = self._codec_in_json
        return bool(written.facts.get(CODEC, own) != own)

    def _how_else(self, written: WrittenParts) -> str:
        """Return how a partition was written, if it must be written again for this; else an empty text."""
        if _made_by(written) != self._made_by:
            return "by other code, arguments or values"
        return f"with {_codec_of(written)}" if self._has_other_codec(written) else ""

    def _require_codec(self, written: Sequence[WrittenParts | None]) -> None:
        """Refuse to publish partitions that were written with another codec than this process has.

        Raises:
            ConfigurationError: if there is such a partition; the error names the partitions to write again.
        """
        others = {
            number: one
            for number, one in enumerate(written)
            if one is not None and self._has_other_codec(one)
        }
        if others:
            own = _codec_in_words(self._codec_in_json)
            raise ConfigurationError(
                f"{self.key}: {len(others)} of {self.count} partitions were written with "
                f"{_codec_of(next(iter(others.values())))}, and the commit has {own}: give all tasks and the "
                "commit the same codec. To write them again as the commit says: "
                f"{self._name_to_write_again([*others])}, then commit again"
            )

    @property
    def _made_by(self) -> str:
        """The hash of all that decides the records; empty if unknown, or if the run's name contains it."""
        return ""

    def _name_to_write_again(self, partitions: Sequence[int]) -> str:
        """Return a phrase that names partitions, or the tasks that write them, if their number is known."""
        found = re.fullmatch(rb"[1-9][0-9]{0,9}", self.backend.root.read(f"{self.folder}/tasks") or b"")
        names = list(map(str, partitions))
        if found:
            count = int(found[0])
            names = [f"{k + 1}/{count}" for k in sorted({number % count for number in partitions})]
        shown = ", ".join(names[:10]) + (", ..." if names[10:] else "")
        return f"run the tasks {shown}" if found else f"[{shown}]"

    def _refuse_unlike(self, written: Sequence[WrittenParts | None], stamps: Sequence[str]) -> None:
        """Refuse partitions that do not fit together, or whose shares have changed since they were written.

        Raises:
            ConfigurationError: if a share has changed.
            UnsupportedDataError: if structures or dtypes differ.
        """
        remedy = "; to write all partitions again, give another run" if self.is_by_tasks else ""
        first: Spec | None = None
        for number, found in enumerate(written):
            if found is None:
                continue
            what = f"{self.key}: {self.described(number)} has"
            if stamps and stamps[number] not in ("", found.facts["stamp"]):
                raise ConfigurationError(f"{what} changed since it was written{remedy}")
            for receipt in found.receipts:
                first = first or receipt.spec
                require_like(first, receipt.spec, what, remedy)

    def others(self) -> str:
        """Return the names of other runs of this version, which tasks may have written to by mistake."""
        below = _names.builds(self.key)
        names = self.backend.root.names(below, ".json")
        receipts = [name for name in names if name.count("/") == below.count("/") + 2]
        runs = {_names.split_attempt(self.key.id, name)[1] for name in receipts}
        others = sorted(run for run in runs if _names.is_partitioned(run) and not self.folder.endswith(run))
        return ", ".join(others[:3])

    def _read(self, partition: int) -> WrittenParts | None:
        """Return the receipt of a partition, or ``None`` if the partition must be written (again)."""
        root, name = self.backend.root, self._receipt_name(partition)
        content = root.read(name)
        if content is None:
            return None
        try:
            written = WrittenParts.from_bytes(content, root, self.key.id, self.origin)
            if not isinstance(written.facts.get("stamp"), str) or not isinstance(_made_by(written), str):
                raise ValueError("it is not the receipt of a partition: a value has the wrong type")
            return written
        except (ValueError, CacheFormatError) as error:
            # A prune with a short grace may have removed the parts; the receipt would prevent writing them
            # again.
            _log.warning("yogadl: %s: partition %d must be written again: %s", self.key, partition, error)
            root.remove(name)
            return None

    @property
    def _entries(self) -> dict[str, Any]:
        """What the manifest says of the partitions."""
        return {"partitions": self.count, "run": self.run}

    def _put_leftovers_aside(self, aside: str) -> None:
        """Put aside receipts of tasks that did not end or were overtaken: nothing else names their parts."""
        put_aside(self.backend.root, self.folder, aside, depth=1)


@dataclass(frozen=True)
class Partitions(InPartitions):
    """A build whose partitions are written by tasks, which hold no right to build; a commit publishes it.

    Args:
        is_named: Whether the caller named the run; otherwise its name is made from the source.
    """

    is_named: bool = False

    is_by_tasks = True

    @property
    def _made_by(self) -> str:
        """The hash of all that decides the records; empty if unknown, or if the run's name contains it.

        It includes the bounds of the shares, which change if the length of the source changes.
        """
        if self.shares is None:  # tasks may say other things of their records
            return self.forms.decide("records")[:_DIGITS] if self.forms.says else ""
        if not self.is_named:
            return ""
        described = [self.origin, self.shares.terms()]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:_DIGITS]

    def _wait_for_prune(self) -> None:
        """Wait for a prune that may remove the part that is about to be moved to its place.

        A task holds no right to build, so a prune may run now. A prune that begins later sees the part's
        receipt. But one that runs now may have listed an old part of the same bytes, which no receipt named
        then.
        """
        self.backend.coordinator.wait_for_pruning(self.key.id)

    def note_tasks(self, count: int) -> None:
        """Record the number of tasks, which write every `count`-th partition each, for error messages."""
        self._note_version()
        self.backend.root.write(f"{self.folder}/tasks", str(count).encode())

    def commit(
        self, builder: dict[str, Any], *, replaces: bool = True, metadata: dict[str, Any] | None = None
    ) -> bool:
        """Publish the cache with a description of its builder; return whether this call did.

        Args:
            builder: Entries of the manifest's description of the builder, beside run and machine.
            replaces: Whether the cache replaces an existing version.
            metadata: What is kept with the version.

        Raises:
            ConfigurationError: if a partition is not written yet, or the run that the user named was
                published with other records.
            UnsupportedDataError: if partitions have different structures.
        """
        machine, stamps = describe_machine(), self._stamps()
        made_of = self._made_of(stamps)
        if made_of:
            machine["made_of"] = made_of
        aside = _names.unresumable(self.key, secrets.token_hex(8))
        with exclusive_build(self.backend, self.key) as exclusion:
            try:
                receipts = self.receipts(self.written(), stamps)
            except ConfigurationError:
                # The receipts of this run may be missing because it was published and they were removed. The
                # name of a run that is made from the source then changes, so the hash is compared; a run that
                # the user named keeps its name, so the name alone is compared.
                if self.is_published("" if self.is_named else made_of):
                    return False
                raise
            source = Source() if self.shares is None else self.shares.source
            refuse_other_metadata(source, metadata or {})
            content = with_metadata(content_of(receipts), metadata, source, self.key)
            built = self.publish(content, machine | builder, exclusion, replaces=replaces, aside=aside)
        clear_unresumable(self.backend, self.key.id, aside)
        return built is not None

    def is_published(self, made_of: str = "") -> bool:
        """Return whether the published version is this run's, or was made of the same data and code.

        Args:
            made_of: The hash of all that decides the records; empty to compare only the run.

        Raises:
            ConfigurationError: if a run that the user named was published with other records than this
                process has.
        """
        try:
            builder = self.backend.catalogue.published(self.key).manifest.builder
        except (DatasetNotFoundError, CacheFormatError):
            return False
        if not builder.items() >= self._entries.items():
            return bool(made_of) and builder.get("made_of") == made_of
        if self.is_named:
            was, now = builder.get("made_of"), self._made_of(self._stamps())
            if was and now and was != now:
                raise ConfigurationError(
                    f"{self.key} was published by the run {self.run!r} from other code, arguments, values or "
                    "files than this process has: give another run, or leave the version as it is"
                )
        return True

    def _stamps(self) -> list[str]:
        """Return the stamps of the shares now; empty if there is no source."""
        if self.shares is None:
            return []
        return [self.shares[number].stamp for number in range(self.count)]

    def _made_of(self, stamps: Sequence[str]) -> str:
        """Return the hash of all that decides the partitions' records now; empty if unknown."""
        if not self.origin or self.shares is None:
            return ""
        described = [self.origin, self.shares.terms(), stamps]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _codec_of(written: WrittenParts) -> str:
    """Return in words with which codec a partition was written."""
    return _codec_in_words(written.facts.get(CODEC))


def _codec_in_words(document: object) -> str:
    return "no codec" if document is None else f"the codec {codec_in_words(document)}"


def _made_by(written: WrittenParts) -> str:
    """Return the hash of the code, arguments and values that wrote a partition; empty if unknown."""
    made_by: str = written.facts.get("made_by", "")
    return made_by
