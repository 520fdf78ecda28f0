"""Every error that yogadl raises on purpose.

Each is also a builtin exception, so that code which does not know yogadl can catch it::

    YogaError
    |-- ConfigurationError(ValueError)      an argument, or two together, make no sense
    |-- UnsupportedDataError(TypeError)     a record that can't be stored: names the field and the record
    |-- MissingDependencyError(ImportError) an optional package is missing: names the extra to install
    |-- RemovedError(ImportError)           a name of yogadl 0.1.4 that is no more: says what to write
    |-- DatasetNotFoundError(LookupError)   no such dataset or version
    |-- CacheFormatError(ValueError)        truncated, corrupt, or newer than this library
    |-- StorageError(OSError)               the disk or the store failed
    |   `-- SpendingError                   reading from the store has cost as much as it may
    |-- LeaseError(TimeoutError)            another process builds: which one, since when, what to do
    |-- CursorError(ValueError)             a cursor of other data, or not a cursor
    |-- StageError(RuntimeError)            a function given to map failed: which, at which record
    `-- WorkerDiedError(RuntimeError)       a worker process died, or several, one after the other
        `-- WorkerTimeoutError(TimeoutError)    it took longer than the time-out, and was ended

A source that raises surfaces as its own exception type, with the record's number added as a note.
All of them pickle.
"""

from yogadl._printable import printable


class YogaError(Exception):
    """Stand for any error that yogadl raises on purpose.

    Its text escapes characters that are not seen: names of others, which may have any, are in it.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), kept="\n\t")


class ConfigurationError(YogaError, ValueError):
    """Say that an argument, or two together, make no sense."""


class UnsupportedDataError(YogaError, TypeError):
    """Say which field of which record can't be stored, and what to do about it."""


class MissingDependencyError(YogaError, ImportError):
    """Say which optional package is missing and the line that installs it."""


class RemovedError(YogaError, ImportError):
    """A name of yogadl 0.1.4 is no more."""


class DatasetNotFoundError(YogaError, LookupError):
    """Say that there is no such dataset or version, and what there is."""


class CacheFormatError(YogaError, ValueError):
    """Say that a cache is truncated, corrupt, or newer than this library."""


class StorageError(YogaError, OSError):
    """Say that the disk or the store failed."""


class SpendingError(StorageError):
    """Say that a limit on requests or on costs was reached, and how much was read."""


class LeaseError(YogaError, TimeoutError):
    """Say which other process builds, since when, and what to do."""


class CursorError(YogaError, ValueError):
    """Say that a cursor is of other data, or is no cursor."""


class StageError(YogaError, RuntimeError):
    """Say at which record a function of a stream failed; the function's own exception is the cause.

    Args:
        text: What happened.
        stage: Which of the stream's functions, from 0.
        record: Which record of the data.
    """

    def __init__(self, text: str, stage: int | None = None, record: int | None = None) -> None:
        super().__init__(text)
        self.stage = stage
        self.record = record


class WorkerDiedError(YogaError, RuntimeError):
    """Say how a worker process died, and what it was working on."""


class WorkerTimeoutError(WorkerDiedError, TimeoutError):
    """Say that a worker process took longer than it was given, and was ended."""
