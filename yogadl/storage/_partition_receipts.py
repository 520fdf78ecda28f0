"""The receipts that tasks leave of their partitions, and the receipts that a commit can't use."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl._core.spec import Spec
from yogadl.storage._parts import read_sealed
from yogadl.storage._receipts import Receipt, samples_from, samples_to_json
from yogadl.storage._root import Root


@dataclass(frozen=True)
class WrittenPartition:
    """The receipt of one partition.

    Args:
        made_by: The hash of the code, arguments and values that it was written by; empty if unknown.
        stamp: The stamp of its share when it was written.
        receipts: The receipts of its parts.
    """

    made_by: str
    stamp: str
    receipts: list[Receipt]

    def to_bytes(self) -> bytes:
        """Return the content of the receipt's file."""
        parts = [
            [r.part.sha256, r.part.index_sha256, r.spec.to_json(), samples_to_json(r.samples)]
            for r in self.receipts
        ]
        return json.dumps({"made_by": self.made_by, "stamp": self.stamp, "parts": parts}).encode()

    @staticmethod
    def from_bytes(content: bytes, root: Root, dataset_id: str, origin: str) -> "WrittenPartition":
        """Return the receipt in a file, after a check that its parts exist.

        Args:
            content: The content of the file.
            root: The root that the parts are below.
            dataset_id: The dataset's id.
            origin: The hash of all that decides the records, for the receipts of the parts.

        Raises:
            ValueError: if the receipt is damaged.
            CacheFormatError: if a part is damaged or missing.
        """
        document = parse_json(content, most_digits=MANY_DIGITS)
        try:
            made_by, stamp = document.get("made_by", ""), document["stamp"]
            receipts, first = [], 0
            for sha256, index_sha256, spec, samples in document["parts"]:
                part = read_sealed(root, dataset_id, sha256, index_sha256)
                receipts.append(Receipt(first, part, Spec.from_json(spec), samples_from(samples), origin))
                first += part.index.records
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no receipt of a partition: {error!r:.200}") from error
        if not isinstance(made_by, str) or not isinstance(stamp, str):
            raise ValueError("it is no receipt of a partition: a value of the wrong kind")
        return WrittenPartition(made_by, stamp, receipts)


def missing_and_foreign(
    written: Sequence[WrittenPartition | None], made_by: str
) -> tuple[list[int], list[int]]:
    """Return the partitions that are not written, and those written by other code, arguments or values.

    Args:
        written: The receipt of each partition.
        made_by: The hash of the code, arguments and values of the commit; empty if unknown: then the hash of
            the first receipt that has one is used.
    """
    missing = [number for number, one in enumerate(written) if one is None]
    there = [(number, one.made_by) for number, one in enumerate(written) if one is not None]
    if not made_by:
        there = [(number, found) for number, found in there if found]
    expected = made_by or (there[0][1] if there else "")
    return missing, [number for number, found in there if found != expected]


def not_complete(count: int, missing: Sequence[int], foreign: Sequence[int], named: str, others: str) -> str:
    """Return the message about partitions that are missing or foreign.

    Args:
        count: The number of partitions.
        missing: The partitions that are not written.
        foreign: The partitions that were written by other code, arguments or values.
        named: A phrase that names the partitions or tasks to run again.
        others: The names of other runs of the version.
    """
    how = {
        "are not written yet": missing,
        "were written by other code, arguments or values than the commit has": foreign,
    }
    said = ", and ".join(f"{len(which)} of {count} partitions {what}" for what, which in how.items() if which)
    what = f"none of {count} partitions is written yet" if len(missing) == count else f"{said}: {named}"
    if foreign:
        what += ", then commit again"
    if others:
        what += (
            "; other partitions of this version were written by tasks of other code, arguments or source, or "
            f"another run: {others}"
        )
    return what
