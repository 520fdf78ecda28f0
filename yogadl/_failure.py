"""Send an error to another process, with its cause and its traceback."""

import pickle
import traceback
from typing import NamedTuple


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
            return Failure(_sent((error, cause)), where)
        except Exception:  # noqa: BLE001  (a user's error may do anything here)
            return Failure(_sent((_sendable(error), cause and _sendable(cause))), where)

    def load(self) -> tuple[BaseException, BaseException | None]:
        """Return the error and its cause."""
        found: tuple[BaseException, BaseException | None] = pickle.loads(self.pickled)
        return found


def _sent(value: object) -> bytes:
    import cloudpickle

    pickled: bytes = cloudpickle.dumps(value)
    pickle.loads(pickled)
    return pickled


def _sendable(error: BaseException) -> BaseException:
    try:
        _sent(error)
    except Exception:  # noqa: BLE001  (see above)
        stands_for = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            stands_for.add_note(note)
        return stands_for
    return error
