"""Refer to records that are read as a stream: what all references of this library have."""

from yogadl._core.protocols import DataRef, Item_co, Lineage, RandomAccess, lineage_of
from yogadl._core.spec import Spec
from yogadl._order import Blocks, Drawn, Mixture
from yogadl._stream import html_of


class StreamedRef(DataRef[Item_co]):
    """A reference to records that are read as a stream.

    Immutable, safe to use from several threads, usable after a fork, and picklable: a reference to a
    cache pickles as its location and name, in well under a kilobyte.

    Args:
        records: Where the records are read from.
    """

    def __init__(self, records: RandomAccess) -> None:
        self._records = records

    @property
    def spec(self) -> Spec:
        """The structure of a record, with dtype and shape per field."""
        return self._records.spec

    @property
    def fingerprint(self) -> str:
        """The hash of the content, the same on every machine."""
        return self._records.fingerprint

    @property
    def record_bytes(self) -> int:
        """The approximate size of a record."""
        return self._records.record_bytes

    @property
    def lineage(self) -> Lineage | None:
        """The dataset version of these records and the earlier versions it begins with.

        None if the records are not all those of one version.
        """
        return lineage_of(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        lineage = self.lineage
        what = f"{len(self)} records, fingerprint {self.fingerprint}"
        if lineage is not None and lineage.tag is not None:
            what = f"{lineage.id!r} version {lineage.version!r} (tag {lineage.tag!r}): {what}"
        return f"<{type(self).__name__} of {what}>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows: the fields and the first records."""
        return html_of(self, self.stream)

    def _order_for(self, shuffle: bool | Blocks) -> bool | Blocks | Drawn | Mixture:
        """Return the order of this reference's streams for the argument `shuffle` of `stream`."""
        return shuffle
