"""Write a page about a version: take what the page shows from the storage."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

from yogadl.cli._arguments import TAGGED, Answer, command, declared, key_of, open_version, typed
from yogadl.cli._output import error_line, note, size
from yogadl.cli._report_page import Subject, page_of
from yogadl.errors import CacheFormatError, ConfigurationError, StorageError
from yogadl.storage import CacheStorage
from yogadl.storage._catalogue.log import Log
from yogadl.storage._files.folder import Folder

_STDOUT: Final = "-"


@command(
    *TAGGED,
    *declared(
        """
        -o --output FILE  the file to write, which must not exist yet; -: stdout
        --seed SEED  the seed of the shuffle that is drawn and that chooses the sample (default: 0)
        """,
        output={"required": True},
        seed=typed(int, 0),
    ),
)
def report(arguments: argparse.Namespace) -> Answer:
    """Write a page about a version: its records, how it is stored, how it was built.

    The page is one HTML file: it loads nothing, runs no script, and can be mailed or printed. Values are
    described from a sample, the records that come first in a shuffle. A large version takes no longer than a
    small one. Pickled fields are not opened, since unpickling runs code.

    Example:
      yogadl report squares 1 -o squares.html -s /data/caches
    """
    if arguments.json and arguments.output == _STDOUT:
        arguments.refuse("--json writes to stdout, so the page can't be written there: give -o a file")
    path = None if arguments.output == _STDOUT else Path(arguments.output).expanduser().absolute()
    if path is not None and os.path.lexists(path):
        raise _exists_error(path)
    storage = open_version(arguments)
    subject = _subject(storage, arguments)
    page = page_of(subject)
    problems = _problems(subject.log)
    for problem in problems:
        note(f"{arguments.id} {problem}")
    code = int(bool(problems))
    if path is None:
        sys.stdout.write(page.decode("ascii"))
        return Answer(code=code)
    if not Folder(path.parent).write_if_absent(path.name, page):
        raise _exists_error(path)
    return Answer(
        key_of(storage, arguments) | {"file": str(path), "size_bytes": len(page), "seed": arguments.seed},
        [f"Wrote a page of {size(len(page))} on {arguments.id} {arguments.version}:", f"  {path}"],
        code,
    )


def _subject(storage: CacheStorage, arguments: argparse.Namespace) -> Subject:
    info = storage.info(arguments.id, arguments.version)
    arguments.version = info.version  # the arguments may name the version by a tag
    # `fetch` allows pickled fields here, but the page does not read them.
    ref = storage.fetch(info.id, info.version, digest=info.digest, allow_pickle=True)
    cache: Any = ref._records  # the cache has its part table in memory since `fetch`, and may be in a bucket
    return Subject(info, storage.location, ref, cache.table, _log(storage, info.id), arguments.seed)


def _log(storage: CacheStorage, dataset_id: str) -> Log | str:
    """Return the dataset's history, or the error that reading it raised: the page does without it."""
    try:
        return storage.log(dataset_id)
    except (CacheFormatError, StorageError) as error:
        return error_line(error)


def _problems(log: Log | str) -> list[str]:
    if isinstance(log, str):
        return [f"has versions and tags that can't be listed: {log}"]
    return [f"{version}: {problem}" for version, problem in log.damaged.items()]


def _exists_error(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} is there already; give another name, or remove it first")
