"""Keep a model of Keras and what belongs to it in one file, which is replaced atomically."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from yogadl.errors import CacheFormatError

_MEMBER: Final = "yogadl.json"  # beside Keras's own files in the archive that a .keras file is


def replace_by(path: Path, save: Callable[[Path], object], state: dict[str, Any]) -> None:
    """Let `save` write a model, put `state` in, and replace `path` by it: there is always one whole file.

    Args:
        path: Ends in ``.keras``; its folder is made.
        save: Writes an archive at the path it is given.
        state: What JSON can say.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.stem}.new.keras")
    save(new)
    with zipfile.ZipFile(new, "a") as archive:
        archive.writestr(_MEMBER, json.dumps(state))
    _flush(new)
    os.replace(new, path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_state(path: Path) -> dict[str, Any]:
    """Return what was put in.

    Raises:
        CacheFormatError: if the file is not one of `replace_by`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            state = json.loads(archive.read(_MEMBER))
        if {"cursor", "epoch", "step", "steps_per_epoch", "seeds"} <= state.keys():
            return dict(state)
    except (zipfile.BadZipFile, KeyError, ValueError, AttributeError) as error:
        raise _foreign(path) from error
    raise _foreign(path)


def _foreign(path: Path) -> CacheFormatError:
    return CacheFormatError(
        f"{path} is no checkpoint of yogadl's, it has no whole {_MEMBER}: move it away to begin anew, or "
        "load it with keras.models.load_model"
    )
