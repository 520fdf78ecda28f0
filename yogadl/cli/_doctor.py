"""Check that a storage can be used; say how to solve each problem.

In a bucket the command checks the credentials, the region and the endpoint, the permissions to list, read and
write, whether the store keeps two builders apart, and the clock. On this machine the command checks the
mirror's folder, the folder's free space, whether locks work there, and the limits of this process. The
command writes a few objects below .yogadl/ in the bucket, and removes all of them but a small one; with
--read-only it writes nothing. The exit code is 1 if there is a problem.

Example:
  yogadl doctor s3://bucket/caches
  yogadl doctor gs://bucket/caches --read-only --mirror /nvme/mirror
  yogadl doctor -s /data/caches
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from yogadl._core.printable import without_secrets
from yogadl.cli._arguments import add_json, add_storage, bucket_at, open_existing, refuse_unused_options
from yogadl.cli._output import say, say_json
from yogadl.errors import ConfigurationError, MissingDependencyError
from yogadl.storage._doctor import (
    Finding,
    Outcome,
    examine_bucket,
    examine_folder,
    examine_mirror,
    examine_process,
)
from yogadl.storage._objects.retry import RetryPolicy
from yogadl.storage._remote.mirror import Mirror

_COLORS: Final = {Outcome.PROBLEM: "red"}
# The user waits for the result, so retries end early.
_PATIENCE: Final = RetryPolicy(silence_s=10.0, total_s=20.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("where", metavar="STORAGE", nargs="?", help="the storage: the same as -s")
    add_storage(parser)
    parser.add_argument(
        "--read-only", action="store_true", help="write nothing, neither to the storage nor on this machine"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check the storage, and return 1 if there is a problem."""
    if arguments.where is not None and arguments.storage is not None:
        arguments.refuse("give the storage only once: as an argument, or with -s")
    arguments.storage = arguments.where if arguments.where is not None else arguments.storage
    findings = []
    for finding in _examine(arguments):
        findings.append(finding)
        if not arguments.json:
            _say(finding)
    problems = sum(finding.state is Outcome.PROBLEM for finding in findings)
    if arguments.json:
        checks = [asdict(one) | {"state": one.state.value, "mend": one.mend or None} for one in findings]
        shown = arguments.storage and without_secrets(arguments.storage)
        say_json(storage=shown, checks=checks, problems=problems)
    else:
        say("All is well." if not problems else f"Problems found: {problems}.")
    return int(problems > 0)


def _examine(arguments: argparse.Namespace) -> Iterator[Finding]:
    writes: bool = not arguments.read_only
    location: str | None = arguments.storage
    if location is not None and "://" in location:
        refuse_unused_options(arguments, location)
        patience = {} if location.startswith("file://") else {"patience": _PATIENCE}
        try:
            bucket = bucket_at(location, arguments, **patience)
            yield from examine_bucket(bucket, writes=writes)
        except MissingDependencyError as error:
            yield Finding("access", Outcome.PROBLEM, str(error), str(error).rpartition(": ")[2])
            return
        except ConfigurationError as error:
            yield Finding("access", Outcome.PROBLEM, str(error), "correct the URL or the options")
            return
        mirror = Mirror(bucket, arguments.mirror, arguments.mirror_limit)
        yield from examine_mirror(mirror, writes=writes)
    else:
        folder = Path(open_existing(arguments).location)
        yield from examine_folder("folder", folder, str(folder), writes=writes)
    yield from examine_process()


def _say(finding: Finding) -> None:
    say(f"{finding.state.value:<8} {finding.what:<15} {finding.text}", _COLORS.get(finding.state, ""))
    if finding.mend:
        say(f"{'':<24} remedy: {finding.mend}")
