"""Put several references together: their records one after another, or mixed."""

from collections.abc import Iterable
from typing import Any

from yogadl._dataref import RecordsRef
from yogadl._interfaces import RandomAccess
from yogadl._views import JoinedRecords
from yogadl.errors import ConfigurationError


def concat(refs: Iterable[RecordsRef]) -> RecordsRef:
    """Return a `DataRef` over the records of several, one after another; nothing is copied.

    Args:
        refs: The references, of records that are alike: the same fields in the same order, with the same
            dtypes and the same shapes (what varies in one varies in all).

    Raises:
        ConfigurationError: if they are not alike; says which field differs.

    Example:
        >>> import yogadl
        >>> both = yogadl.concat([yogadl.from_source([10, 11]), yogadl.from_source([20, 21, 22])])
        >>> len(both), both.gather([0, 4, 1]).tolist()
        (5, [10, 22, 11])
    """
    return RecordsRef(JoinedRecords([_records_of(ref) for ref in refs]))


def _records_of(given: Any) -> RandomAccess:  # Any: it is checked here
    """Return what the records of a reference are read from.

    Raises:
        ConfigurationError: if it is none that can be read at random.
    """
    if not isinstance(given, RecordsRef):
        raise ConfigurationError(
            f"a {type(given).__name__} can't be put together with others: pass what storage.fetch(...), "
            "yogadl.from_source(...) or a view of such returned"
        )
    return given._records
