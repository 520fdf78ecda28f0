"""Keep a name that is in pickles: of users, and in object fields of published caches."""

from yogadl._core.spec import rebuild_named_tuple

__all__ = ["rebuild_named_tuple"]
