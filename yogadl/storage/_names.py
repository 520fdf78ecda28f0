"""Name the files of a dataset below the root of a storage, and recognise those names.

An *attempt* to build a version has a folder of its own below ``builds/``. The leases on building a version
are numbered by their *term*, the moves of a tag by their number. The *trash* has the manifests of versions
that were deleted or replaced.
"""

import hashlib
import re
from dataclasses import field
from typing import Final

from yogadl._core.frozen import frozen
from yogadl._core.key import DatasetKey
from yogadl._format.files import File, PartFile
from yogadl._format.table import is_hash
from yogadl.errors import CacheFormatError

# Patterns of the names below a dataset, not compiled here: a process that only reads does not need them.
# _CACHE_FILES matches files that may be removed once no manifest and no build needs them.
_CACHE_FILES: Final = (
    r"(parts/[0-9a-f]{64}\.(mdb|idx|dict)|tables/[0-9a-f]{64}\.(parts|pins)|builds/[0-9a-f]{24}/.*"
    r"|tables/[0-9a-f]{32}/[0-9a-f]{24}\.(selection|plan)"
    r"|leases/[0-9a-f]{24}/[0-9]{10}(\.beat|\.end|\.wait)?"
    r"|tags/.+/[0-9]{10}\.tag)"
)
_LOCK_FILES: Final = r"locks/[0-9a-f]{24}\.(lock|turn|holder)"
_UNFINISHED: Final = r"(?:.*/)?\.[0-9a-f]{16}\.tmp"
_LEASE: Final = r"([0-9]{10})(\.beat|\.end|\.wait)?"
MAX_TERM_OR_MOVE: Final = 10**10 - 1  # the names of leases and of a tag's moves have ten digits
MANIFEST_SUFFIX: Final = ".json"
TABLE_SUFFIX: Final = ".parts"
DICTIONARY_SUFFIX: Final = ".dict"
SELECTION_SUFFIX: Final = ".selection"
PLAN_SUFFIX: Final = ".plan"
TAG_SUFFIX: Final = ".tag"
HEARTBEAT_SUFFIX: Final = ".beat"
END_SUFFIX: Final = ".end"
WAIT_SUFFIX: Final = ".wait"


@frozen
class WholeDataset:
    """A stand-in for the key of a version, which names the lease or lock on a whole dataset for pruning.

    Args:
        id: The dataset's id.
    """

    id: str
    version: str = field(default="", init=False)  # no version can have this name

    def __str__(self) -> str:
        return f"dataset {self.id!r}"


def manifest(key: DatasetKey) -> str:
    """Return the manifest's name."""
    return f"{key.id}/versions/{key.version}{MANIFEST_SUFFIX}"


def parts(dataset_id: str) -> str:
    """Return the folder of all parts, and of their indexes."""
    return f"{dataset_id}/parts"


def part(dataset_id: str, sha256: str) -> str:
    """Return a part's name."""
    return f"{parts(dataset_id)}/{_checked_hash(sha256)}{PartFile.suffix}"


def index(dataset_id: str, index_sha256: str) -> str:
    """Return the name of a part's index, made from the index's hash: equal parts may differ in layout."""
    return f"{dataset_id}/parts/{_checked_hash(index_sha256)}.idx"


def indexes(dataset_id: str, sha256: str, index_sha256: str) -> tuple[str, str]:
    """Return the names that a part's index may have: from its own hash, or in old caches from the part's."""
    return index(dataset_id, index_sha256), f"{dataset_id}/parts/{_checked_hash(sha256)}.idx"


def dictionary(dataset_id: str, sha256: str) -> str:
    """Return the name of a dictionary that compressed values of parts need."""
    return f"{parts(dataset_id)}/{_checked_hash(sha256)}{DICTIONARY_SUFFIX}"


def file_of(dataset_id: str, file: File) -> str:
    """Return the name of a file of a version; of a file with an address, that of a mirror's copy."""
    return f"{parts(dataset_id)}/{_checked_hash(file.sha256)}{file.suffix}"


def table(dataset_id: str, sha256: str) -> str:
    """Return a part table's name."""
    return f"{dataset_id}/tables/{_checked_hash(sha256)}{TABLE_SUFFIX}"


def pins(dataset_id: str, table_sha256: str) -> str:
    """Return the name of the file with the pins of a part table's parts.

    A pin is the hash of the tag that a part's object had when it was published: see `requests.Pins`.
    """
    return f"{dataset_id}/tables/{_checked_hash(table_sha256)}.pins"


def selections(dataset_id: str, fingerprint: str) -> str:
    """Return the folder of the selections and plans of records with this fingerprint, in any version."""
    return f"{dataset_id}/tables/{fingerprint}"


def selection(dataset_id: str, fingerprint: str, name: str) -> str:
    """Return the name of the file of a selection; the file contains the selection's full name."""
    # No longer than the name of a part table, so that it fits for every dataset.
    return f"{selections(dataset_id, fingerprint)}/{name[:24]}{SELECTION_SUFFIX}"


def plan(dataset_id: str, fingerprint: str, name: str) -> str:
    """Return the name of the file of a plan of packs or batches; the file contains the plan's full name."""
    return f"{selections(dataset_id, fingerprint)}/{name[:24]}{PLAN_SUFFIX}"


def tags(dataset_id: str) -> str:
    """Return the folder of the tags."""
    return f"{dataset_id}/tags"


def tag(dataset_id: str, name: str, number: int) -> str:
    """Return the name of the file of a tag's move to a version; a tag's moves are numbered from 1."""
    return f"{tags(dataset_id)}/{name}/{number:010d}{TAG_SUFFIX}"


def trashed(key: DatasetKey, nanoseconds: int) -> str:
    """Return the name of a manifest that was moved to the trash at that time."""
    return f"{key.id}/trash/{key.version}@{nanoseconds:020d}{MANIFEST_SUFFIX}"


def split_trashed(name: str) -> tuple[str, int]:
    """Return version and time in nanoseconds from the name of a manifest, relative to ``trash/``.

    Raises:
        ValueError: if the name has another form.
    """
    version, _, stamp = name.removesuffix(MANIFEST_SUFFIX).rpartition("@")
    if re.fullmatch("[0-9]{1,20}", stamp) is None or int(stamp) >= 2**63:
        raise ValueError(f"the name of a trashed manifest ends in {stamp!r:.80}, not a time in nanoseconds")
    return version, int(stamp)


def builds(key: DatasetKey) -> str:
    """Return the folder of all attempts to build this version.

    Its name is a hash, since the folder of version ``a`` must not contain that of ``a/b``.
    """
    return f"{key.id}/builds/{_version_hash(key.version)}"


def resumable(key: DatasetKey) -> str:
    """Return the folder of the attempt that the next builder may continue."""
    return f"{builds(key)}/one"


def unresumable(key: DatasetKey, token: str) -> str:
    """Return the folder of an attempt that only the builder of this token can finish.

    The folder is needed only while the version is being built.
    """
    return f"{builds(key)}/one-{token}"


def partitioned(key: DatasetKey, run: str, partitions: int) -> str:
    """Return the folder of an attempt whose partitions are written by tasks, which hold no lease or lock."""
    return f"{builds(key)}/run-{run}-{partitions}"


def parallel(key: DatasetKey, run: str) -> str:
    """Return the folder of an attempt whose partitions are written in parallel for one builder.

    The builder holds the right to build the version. If it dies, the next builder may continue the attempt.
    """
    return f"{builds(key)}/many-{run}"


def is_parallel(attempt: str) -> bool:
    """Return whether an attempt of that name is one of `parallel`."""
    return attempt.startswith("many-")


def is_unresumable(attempt: str) -> bool:
    """Return whether an attempt of that name is useless once its version is not being built."""
    return attempt.startswith("one-")


def is_partitioned(attempt: str) -> bool:
    """Return whether the partitions of an attempt of that name are written by tasks."""
    return attempt.startswith("run-")


def split_attempt(dataset_id: str, name: str) -> tuple[str, str]:
    """Return the folder of the version's attempts that has a file below ``builds/``, and the attempt's name.

    The name is empty for a file outside the folders of attempts.
    """
    version, _, rest = name[len(f"{dataset_id}/builds/") :].partition("/")
    attempt, slash, _ = rest.partition("/")
    return f"{dataset_id}/builds/{version}", attempt if slash else ""


def version_note(builds: str) -> str:
    """Return the name of the file that contains the version's name, in the folder of its builds."""
    return f"{builds}/version"


def lock(key: DatasetKey | WholeDataset) -> str:
    """Return the name of the lock on building this version, or on pruning the dataset."""
    return f"{key.id}/locks/{_version_hash(key.version)}.lock"


def turn(key: DatasetKey) -> str:
    """Return the name of the lock on being the next to build this version."""
    return f"{key.id}/locks/{_version_hash(key.version)}.turn"


def holder(key: DatasetKey) -> str:
    """Return the name of the file that describes the process that builds this version."""
    return f"{key.id}/locks/{_version_hash(key.version)}.holder"


def is_lock(dataset_id: str, name: str) -> bool:
    """Return whether a file below a dataset is, or belongs to, a lock on one of the dataset's versions."""
    whole = lock(WholeDataset(dataset_id))
    return name != whole and re.fullmatch(_LOCK_FILES, name[len(dataset_id) + 1 :]) is not None


def version_hash_in(name: str) -> str:
    """Return the hash of a version from the name of its lock, or of the folder of its builds."""
    return name.rpartition("/")[2].partition(".")[0]


def leases(key: DatasetKey | WholeDataset) -> str:
    """Return the folder of the leases on building this version, or on pruning the dataset."""
    return f"{key.id}/leases/{_version_hash(key.version)}"


def lease(key: DatasetKey | WholeDataset, term: int) -> str:
    """Return the name of the lease on building or pruning that has this term; the first term is 1."""
    return f"{leases(key)}/{term:010d}"


def split_lease(name: str) -> tuple[int, str] | None:
    """Return term and ending (none or ``.beat``, ``.end``, ``.wait``) of the name of a lease's object."""
    match = re.fullmatch(_LEASE, name.rpartition("/")[2])
    return None if match is None else (int(match[1]), match[2] or "")


def is_unfinished(name: str) -> bool:
    """Return whether a file is a temporary file, whose write has not ended and may never end."""
    return re.fullmatch(_UNFINISHED, name) is not None


def is_cache_file(dataset_id: str, name: str) -> bool:
    """Return whether a file below a dataset has the form of a cache's file, and so may be removed.

    The lease on pruning is excluded: the next prune clears it.
    """
    if is_unfinished(name):
        return True
    if name.startswith(f"{leases(WholeDataset(dataset_id))}/"):
        return False
    return re.fullmatch(_CACHE_FILES, name[len(dataset_id) + 1 :]) is not None


def _version_hash(version: str) -> str:
    return hashlib.sha256(version.encode()).hexdigest()[:24]


def _checked_hash(sha256: str) -> str:
    # Names in a manifest are untrusted data; only a hash may become a part of a path.
    if not is_hash(sha256, 64):
        raise CacheFormatError(
            f"{sha256!r:.80} is not the SHA-256 hash of a cache's file: the manifest or part table was "
            "changed; build the dataset again, or restore the file"
        )
    return sha256
