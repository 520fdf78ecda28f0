"""Every error that yogadl raises on purpose.

Each is also a builtin exception, so that code without yogadl can catch it::

    YogaError
    |-- ConfigurationError(ValueError)      an argument is invalid, or two contradict each other
    |-- UnsupportedDataError(TypeError)     a record that can't be stored: names the field and the record
    |-- MissingDependencyError(ImportError) an optional package is missing: names the extra to install
    |-- RemovedError(ImportError)           a name of yogadl 0.1.4 was removed: says what to write
    |-- DatasetNotFoundError(LookupError)   no such dataset or version
    |-- CacheFormatError(ValueError)        truncated, corrupt, or newer than this library
    |-- StorageError(OSError)               the disk or the store failed
    |   |-- CredentialsError                the store accepts no request with these credentials
    |   `-- SpendingError                   a limit on the requests or their cost is reached
    |-- LeaseError(TimeoutError)            another process builds: which one, since when, what to do
    |-- CursorError(ValueError)             a cursor of other data, or not a cursor
    |-- TicketError(RuntimeError)           a ticket that has ended, or a wait for one that would not end
    |-- StageError(RuntimeError)            a function of a stream failed: which one, at which record
    `-- WorkerDiedError(RuntimeError)       worker processes died: how, and at what work
        `-- WorkerTimeoutError(TimeoutError)    a worker took longer than the time-out, and was ended

An exception that a source raises keeps its own type; the record's number is added as a note.
All of these errors can be pickled.
"""

from yogadl._core.printable import printable


class YogaError(Exception):
    """The base class of all errors that yogadl raises on purpose.

    Invisible characters in the text are escaped: it may contain names that others chose, with any characters.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), kept="\n\t")


class ConfigurationError(YogaError, ValueError):
    """An argument is invalid, or two contradict each other."""


class UnsupportedDataError(YogaError, TypeError):
    """A record can't be stored; the text names the field and the record, and a remedy."""


class MissingDependencyError(YogaError, ImportError):
    """An optional package is missing; the text gives the line that installs it."""


class RemovedError(YogaError, ImportError):
    """A name of yogadl 0.1.4 was removed; the text gives the replacement."""


class DatasetNotFoundError(YogaError, LookupError):
    """A dataset or version does not exist; the text lists those that do."""


class CacheFormatError(YogaError, ValueError):
    """A cache is truncated, corrupt, or newer than this library."""


class StorageError(YogaError, OSError):
    """The disk or the store failed; `errno` is the operating system's number, which the text leaves out."""

    def __str__(self) -> str:
        return super().__str__().removeprefix(f"[Errno {self.errno}] ")


class CredentialsError(StorageError):
    """The store accepts no request with these credentials, or there are none."""


class SpendingError(StorageError):
    """A limit on requests or on their cost is reached; the text says how much was requested and received."""


class LeaseError(YogaError, TimeoutError):
    """Another process builds; the text gives the process, the start of its build, and a remedy."""


class CursorError(YogaError, ValueError):
    """A cursor belongs to other data, or is no cursor."""


class TicketError(YogaError, RuntimeError):
    """A ticket has ended already, or belongs to another process; or waiting for one would never end."""


class StageError(YogaError, RuntimeError):
    """A function of a stream failed at a record; the function's own exception is the cause.

    Args:
        text: The message.
        stage: The number of the function in the stream, from 0.
        record: The index of the record in the data.
    """

    def __init__(self, text: str, stage: int | None = None, record: int | None = None) -> None:
        super().__init__(text)
        self.stage = stage
        self.record = record


class WorkerDiedError(YogaError, RuntimeError):
    """A worker process died; the text gives the cause, and the work that it was doing."""


class WorkerTimeoutError(WorkerDiedError, TimeoutError):
    """A worker process took longer than its time-out, and was ended."""
