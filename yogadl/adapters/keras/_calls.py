"""Look up how Keras is about to read a dataset, which it does not tell the dataset."""

import sys
from typing import Final, NamedTuple

_NEAR: Final = 8  # calls up from here; in Keras 3.15 it is the third


class Call(NamedTuple):
    """How the batches of a dataset will be asked for: shuffled if it ends, and how many."""

    is_shuffled: bool
    steps: int | None


def reading_call() -> Call | None:
    """Return how Keras will read the dataset that it is taking up now; None if it isn't doing so.

    Nothing but `fit` and its like know, so this looks at the arguments of the function of Keras's by which
    all of them take up a dataset, on every backend, before anything is read.
    """
    frame = sys._getframe(1)
    for _ in range(_NEAR):
        if frame.f_code.co_name == "get_data_adapter":
            given = frame.f_locals
            if "shuffle" in given and "steps_per_epoch" in given:
                return Call(bool(given["shuffle"]), given["steps_per_epoch"])
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
