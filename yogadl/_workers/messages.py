"""Send data, functions and errors to other processes."""

import functools
import io
import mmap
import os
import pickle
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from yogadl._core.printable import error_text
from yogadl.errors import ConfigurationError, YogaError


class Failure(NamedTuple):
    """An error on its way to another process.

    Args:
        pickled: The error and its cause. An error that can't be pickled is replaced by a `RuntimeError` with
            its type's name and text.
        where: The error's traceback.
    """

    pickled: bytes
    where: str

    @staticmethod
    def of(error: BaseException) -> "Failure":
        """Return the failure to send for an error."""
        where = "".join(traceback.format_exception(error))
        cause = error.__cause__
        try:
            return Failure(_pickle_checked((error, cause)), where)
        except Exception:  # noqa: BLE001  (a user's error may do anything here)
            return Failure(_pickle_checked((_sendable(error), cause and _sendable(cause))), where)

    def load(self) -> tuple[BaseException, BaseException | None]:
        """Return the error and its cause."""
        found: tuple[BaseException, BaseException | None] = pickle.loads(self.pickled)
        return found


def _pickle_checked(value: object) -> bytes:
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(value)
    pickle.loads(pickled)
    return pickled


def _sendable(error: BaseException) -> BaseException:
    try:
        _pickle_checked(error)
    except Exception:  # noqa: BLE001  (see above)
        substitute = RuntimeError(error_text(error))
        for note in getattr(error, "__notes__", ()):
            substitute.add_note(note)
        return substitute
    return error


# Pickle data for other processes; on this machine, arrays in mapped files are sent as the files' names.


def pickled(value: Any, what: str = "the source", *, stays_here: bool, hint: str | None = None) -> bytes:
    """Pickle a source and other data, including functions of scripts and notebooks.

    Args:
        value: The data to send.
        what: The name of the data in an error.
        stays_here: Whether the data is for workers on this machine, which can open the same files, or for an
            engine's tasks.
        hint: The remedy in an error, if it is not to leave workers or the engine out.

    Raises:
        ConfigurationError: if the data can't be pickled.
    """
    file = io.BytesIO()
    try:
        _pickler(file, stays_here).dump(value)
    except YogaError:
        raise  # a source's own error gives the reason
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        receiver, without = "workers", "workers"
        if not stays_here:
            receiver, without = "an engine's tasks, each of which gets a copy, also in a thread", "the engine"
        hint = hint or f"Leave {without} out, or open what does not pickle only at the first read"
        raise ConfigurationError(f"{what} can't be sent to {receiver}: {error}. {hint}") from error
    return file.getvalue()


def _pickler(file: io.BytesIO, stays_here: bool) -> Any:  # cloudpickle has no types
    class SendsFiles(by_value()):  # type: ignore[misc]
        """Sends an array that is mapped from a file as the file's name and the array's place in it."""

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, np.ndarray):
                mapped = _mapped(value)
                if mapped is not None:
                    return mapped
            return super().reducer_override(value)

    return (SendsFiles if stays_here else by_value())(file)


@functools.cache
def by_value() -> Any:
    """Return a pickler that also sends functions and classes of scripts; see `reduced` for its exceptions."""
    import cloudpickle

    class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(
            {CodeType: _with_its_file}, cloudpickle.Pickler.dispatch_table
        )

        def reducer_override(self, value: Any) -> Any:
            reduction = reduced(value)
            return super().reducer_override(value) if reduction is NotImplemented else reduction

    return ByValue


def _with_its_file(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    """Reduce code as cloudpickle does, but with its file's name, which cloudpickle 3.1.3 leaves out."""
    import cloudpickle

    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _code_of_file, (make, parts, code.co_filename)


def _code_of_file(make: Callable[..., CodeType], parts: tuple[Any, ...], file: str) -> CodeType:
    return make(*parts).replace(co_filename=file)  # a traceback shows the file's name and lines


def reduced(value: Any) -> Any:
    """Return how to pickle a value that cloudpickle would change; `NotImplemented` for any other value.

    Raises:
        TypeError: for an open file, of which cloudpickle would send the content.
    """
    if type(value) is memoryview:
        return _view, (np.asarray(value), value.readonly)
    if isinstance(value, io.TextIOWrapper) and value is not sys.stdout and value is not sys.stderr:
        raise TypeError(f"cannot pickle {type(value).__name__!r} object, which is an open file")
    return NotImplemented


def _view(array: NDArray[Any], is_readonly: bool) -> memoryview:
    return array.data.toreadonly() if is_readonly else array.data


def _mapped(array: NDArray[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return a call that maps an array from its file again, or ``None`` if the array differs from the file.

    A copy-on-write map may have been written to, so it counts as different.
    """
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base.base, mmap.mmap):
        base = base.base
    is_file = isinstance(base, np.memmap) and base.filename is not None and base.mode != "c"
    if not is_file or array.dtype.hasobject or type(array) not in (np.ndarray, np.memmap):
        return None
    if not os.path.isfile(base.filename):
        return None  # a removed file can still be read through the existing map, but not mapped again
    # A map begins at a page of the file, whereas `offset` may be anywhere in a page.
    map_offset = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
    map_address = np.frombuffer(base.base, np.uint8).ctypes.data
    array_offset = map_offset + array.ctypes.data - map_address
    return _map_again, (str(base.filename), array_offset, array.dtype, array.shape, array.strides)


def _map_again(
    filename: str, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    return np.ndarray(shape, dtype, np.memmap(filename, np.uint8, "r"), offset, strides)
