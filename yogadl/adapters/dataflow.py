"""Read TensorPack's DataFlow: call `reset_state`, then read one datapoint after another."""

from typing import Any

from yogadl._core.forms import PLAIN, Forms
from yogadl._sources.sources import IterableSource, Source

__all__ = ["source"]


def source(data: Any, forms: Forms = PLAIN) -> Source | None:  # a DataFlow of any package
    """Return the source in a DataFlow, or ``None`` if `data` is none.

    Each datapoint is a record. The datapoints are read once, in order. `reset_state` is called in the process
    that reads, as TensorPack requires.

    Args:
        data: Any object with ``reset_state`` and ``__iter__``; the iteration must end.
        forms: The caller's statements about the values of records.

    Raises:
        UnsupportedDataError: if there are no datapoints or a value can't be stored; names field and record.
    """
    if not hasattr(data, "reset_state") or not hasattr(data, "__iter__"):
        return None
    data.reset_state()
    # Its length is not used: a DataFlow may lack one, or only estimate it (MapData drops datapoints).
    return IterableSource(iter(data), forms)
