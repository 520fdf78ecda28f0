"""Mark the first records of sequences, and find the episodes that an order of sequences needs."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from yogadl._core.protocols import (
    Announced,
    Column,
    Document,
    Indices,
    Memory,
    Numbers,
    OnPlanned,
    RandomAccess,
)
from yogadl._core.spec import DictNode, Leaf, Spec
from yogadl._order import Sequences, SequencesOfEpisodes
from yogadl._views.views import SameNumbers
from yogadl._views.windows import find_episodes
from yogadl.errors import ConfigurationError


class MarkedRecords(SameNumbers):
    """Records with one more field, a bool that an order sets; the fingerprint is that of the parent.

    Index i is record i, not marked. Index ``len(self) + i`` is the same record, marked.

    Args:
        parent: The records, which are dicts.
        name: The name of the field.

    Raises:
        ConfigurationError: if there is no place for the field.
    """

    spec: Spec
    fingerprint: str
    record_bytes: int
    is_drawn = True  # an index says more than which record it is

    def __init__(self, parent: RandomAccess, name: str) -> None:
        tree = parent.spec.tree
        if not isinstance(tree, DictNode):
            raise ConfigurationError(
                f"the field {name!r} of Sequences needs a place in the record: make the records dicts first, "
                'ref.map(lambda record: {"value": record}), or pass first=None for no such field'
            )
        if name in tree.keys:
            raise ConfigurationError(
                f"there is already a field {name!r}: pass another name to Sequences, first=..., or first=None"
            )
        self.parent = parent
        self._name = name
        self.fingerprint = parent.fingerprint
        mark = Leaf("bool", ())
        self.spec = Spec(replace(tree, keys=(*tree.keys, name), children=(*tree.children, mark)))
        self.record_bytes = parent.record_bytes + mark.row_bytes

    def over(self, parent: RandomAccess) -> "MarkedRecords":
        """Return the same view of the first records alone, which `parent` has."""
        return MarkedRecords(parent, self._name)

    def _in_parent(self, indices: Indices) -> Indices:
        return indices % max(1, len(self.parent))

    def user_numbers(self, indices: Indices) -> Numbers:
        """Return the numbers of records by which users know them."""
        return self.parent.user_numbers(self._in_parent(indices))

    def prepare(self, indices: Indices) -> None:
        """Compute what many records are made of."""
        self.parent.prepare(self._in_parent(indices))

    def documents_of(self, indices: Indices) -> list[list[Document]]:
        """Return the records that each is made of."""
        return self.parent.documents_of(self._in_parent(indices))

    def file_of(self, index: int) -> str | None:
        """Return the path of the file that a record comes from, if the source lists it."""
        return self.parent.file_of(index % len(self.parent))

    def will_need(
        self, indices: Indices, fields: Sequence[int] | None = None, on_planned: OnPlanned | None = None
    ) -> Announced:
        """Announce that these records will be read soon."""
        return self.parent.will_need(self._in_parent(indices), self._others(fields), on_planned)

    def columns(
        self, indices: Indices, fields: Sequence[int] | None = None, memory: Memory | None = None
    ) -> Sequence[Column]:
        """Read records in the order of `indices`."""
        numbers = range(len(self.spec.fields)) if fields is None else fields
        found = list(self.parent.columns(self._in_parent(indices), self._others(fields), memory))
        for place, number in enumerate(numbers):
            if number == len(self.parent.spec.fields):
                found.insert(place, indices >= len(self.parent))
        return found

    def _others(self, fields: Sequence[int] | None) -> Sequence[int] | None:
        mark = len(self.parent.spec.fields)
        return None if fields is None else [number for number in fields if number != mark]


def sequences_of(records: RandomAccess, sequences: Sequences) -> SequencesOfEpisodes:
    """Return the order of sequences of these records, with their episodes.

    Raises:
        ConfigurationError: if no field is named and the records have no episodes of their own, or the field
            can't number them.
    """
    if sequences.within is not None:
        episodes, _ = find_episodes(records, sequences.within, "Sequences")
        return SequencesOfEpisodes(sequences, episodes.ends, episodes.order)
    ends = records.episode_ends
    if ends is None:
        raise ConfigurationError(
            f"Sequences needs the episode of each record: name the field that numbers it, Sequences(lanes="
            f'{sequences.lanes}, within="episode"), or open a stream of ref.windows(..., within=...), '
            "perhaps mapped, sliced, or of some fields"
        )
    return SequencesOfEpisodes(sequences, np.ascontiguousarray(ends))
