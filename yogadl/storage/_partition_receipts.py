"""The receipts that tasks leave of their partitions: what each says, and which a commit can't use."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from yogadl._json import MANY_DIGITS, parse_json
from yogadl._spec import Spec
from yogadl.storage._parts import read_sealed
from yogadl.storage._receipts import Receipt, samples_from, samples_to_json
from yogadl.storage._root import Root


@dataclass(frozen=True)
class WrittenPartition:
    """The receipt of one partition.

    Args:
        made_by: The hash of code, arguments and values that it was written by; empty if that is not known.
        stamp: What its share said of itself.
        receipts: Those of its parts.
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
        """Return what a receipt's file says, after a look at the parts that it names.

        Args:
            content: Of the file.
            root: Where the parts are.
            dataset_id: What the dataset is called.
            origin: The hash of what decides the records, for the receipts of the parts.

        Raises:
            ValueError: if it is damaged.
            CacheFormatError: if a part is, or is gone.
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
    """Return which partitions are not written, and which by other code, arguments or values.

    Args:
        written: The receipt of each partition.
        made_by: The hash of those that commit; empty if it is not known: then that of the first partition
            that has one counts.
    """
    missing = [number for number, one in enumerate(written) if one is None]
    there = [(number, one.made_by) for number, one in enumerate(written) if one is not None]
    if not made_by:
        there = [(number, found) for number, found in there if found]
    expected = made_by or (there[0][1] if there else "")
    return missing, [number for number, found in there if found != expected]


def not_complete(count: int, missing: Sequence[int], foreign: Sequence[int], named: str, others: str) -> str:
    """Return what to say of partitions that are missing or foreign.

    Args:
        count: How many partitions there are.
        missing: Those that are not written.
        foreign: Those that were written by other code, arguments or values.
        named: What to run, or to write, again.
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
