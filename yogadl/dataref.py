"""Keep a name of yogadl 0.1.4, for annotations: `yogadl.dataref.LMDBDataRef`."""

from yogadl._dataref import RecordsRef as LMDBDataRef

__all__ = ["LMDBDataRef"]
