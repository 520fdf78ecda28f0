"""The manifest: the small JSON document that makes a cache exist."""

import hashlib
import json
from dataclasses import field, replace
from typing import Any, Final

from yogadl._core.frozen import MANY_DIGITS, frozen, has_many_values, parse_json
from yogadl._core.key import DatasetKey, is_version
from yogadl._core.protocols import Earlier
from yogadl._core.spec import JSON, OBJECT, Spec
from yogadl._format.codec import CODECS, RAW
from yogadl._format.files import FOREIGN, PARQUET
from yogadl._format.table import (
    CONTAINER,
    CONTAINERS,
    LEAST_PAGE_BYTES,
    MAX_CACHE_BYTES,
    MAX_RECORDS,
    is_hash,
    most_table_bytes,
)
from yogadl.errors import CacheFormatError, ConfigurationError

FORMAT_VERSION: Final = 1
# The features that this library supports; a manifest that needs another one is refused by the feature's name.
NEEDS_PICKLE: Final = "pickle"
NEEDS_JSON: Final = "json"
KNOWN_NEEDS: Final = frozenset({NEEDS_PICKLE, NEEDS_JSON})
# The size limit of a manifest. 4,096 fields take about a megabyte, and the builder's source rarely as much.
MAX_MANIFEST_BYTES: Final = 2**24
# The most earlier versions that a manifest names; the newest are kept.
MOST_EARLIER: Final = 1000
_BUILD_AGAIN: Final = "delete this version and build it again"
# The size limit of a version's metadata as JSON text, and of its nesting.
MAX_METADATA_BYTES: Final = 2**16
# The name in a version's metadata under which its builds list the records that they left out.
LEFT_OUT: Final = "left_out"
CODEC: Final = "codec"  # the name in `builder` under which a build records how it compressed values
_METADATA_DEPTH: Final = 64
# The name in the description of a version's builder of what foreign files it was adopted from.
ADOPTED: Final = "adopted"
_SMALL_BYTES: Final = 2**16  # larger items of provenance are left out of a manifest that is too long


@frozen
class DecodedRows:
    """The rows that are decoded from a version's stored records, each of which is a group of rows.

    Args:
        spec: The structure of a row.
        records: The number of rows.
        form: How a group is decoded, in plain JSON.
    """

    spec: Spec
    records: int
    form: dict[str, Any]

    def fingerprint_over(self, groups: str) -> str:
        """Return the fingerprint of the rows, given that of the groups, which says where they lie."""
        text = json.dumps([groups, self.spec.to_json(), self.form], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@frozen
class Groups:
    """The groups of rows that a version's parts hold in the place of its records.

    Args:
        records: The number of groups.
        spec: The structure of a group: where its columns lie, and what is known of it.
        form: How a group is decoded, in plain JSON.
    """

    records: int
    spec: Spec
    form: dict[str, Any]


@frozen
class Manifest:
    """The description of one published dataset version. Immutable; its bytes are its identity.

    Args:
        key: The dataset's id and version.
        spec: The structure of a record.
        records: The number of records.
        fingerprint: The hash of the content.
        table_sha256: The name of the part table.
        table_bytes: The size of the part table.
        size_bytes: The size of all parts.
        parts: The number of parts.
        created: The time of publication, in seconds since 1970.
        builder: The provenance: the builder's source code, its arguments, library versions.
        token: A value that differs for any other publication, even of the same content.
        earlier: The versions that this one begins with, the oldest first.
        metadata: What the user keeps with the version, plain JSON.
        codecs: The codec of each field; none: all fields are raw.
        container: The form in which the values lie.
        aliases: Other fingerprints of the same records, which cursors may have.
        is_weak: Whether the fingerprint is of places in foreign files, which were not read.
        groups: The groups that the parts hold, if the records are rows of these.
    """

    key: DatasetKey
    spec: Spec
    records: int
    fingerprint: str
    table_sha256: str
    table_bytes: int
    size_bytes: int
    parts: int
    created: float
    builder: dict[str, Any] = field(default_factory=dict)
    token: str = ""
    earlier: tuple[Earlier, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    codecs: tuple[str, ...] = ()
    container: str = CONTAINER
    aliases: tuple[str, ...] = ()
    is_weak: bool = False
    groups: Groups | None = None

    @property
    def decoded(self) -> DecodedRows | None:
        """The rows, if the parts hold groups of these."""
        return None if self.groups is None else DecodedRows(self.spec, self.records, self.groups.form)

    @property
    def stored(self) -> "Manifest":
        """The manifest of what the parts hold, as if groups of rows were records."""
        groups = self.groups
        if groups is None:
            return self
        return replace(self, spec=groups.spec, records=groups.records, container=FOREIGN, groups=None)

    @property
    def needs(self) -> list[str]:
        """The features that a reader must support."""
        dtypes = {field.leaf.dtype for field in self.spec.fields}
        return [need for dtype, need in ((OBJECT, NEEDS_PICKLE), (JSON, NEEDS_JSON)) if dtype in dtypes]

    @property
    def is_adopted(self) -> bool:
        """Whether values lie in foreign files."""
        return self.container in (FOREIGN, PARQUET)

    @property
    def has_own_texts(self) -> bool:
        """Whether foreign files may write json values otherwise than a copy of the records does."""
        return self.is_adopted and NEEDS_JSON in self.needs

    def to_bytes(self) -> bytes:
        """Return the manifest's file."""
        stored = self.stored
        document = {
            "format": FORMAT_VERSION,
            "needs": self.needs,
            "id": self.key.id,
            "version": self.key.version,
            "records": self.records,
            "fingerprint": self.fingerprint,
            "spec": self.spec.to_json(),
            "codec": list(self.codecs) or [RAW] * len(stored.spec.fields),
            "table": {"container": self.container, "sha256": self.table_sha256, "bytes": self.table_bytes},
            "bytes": self.size_bytes,
            "parts": self.parts,
            "created": self.created,
            "builder": self.builder,
            "token": self.token,
        }
        if self.earlier:
            document["continues"] = [dict(vars(version)) for version in self.earlier]
        if self.metadata:
            document["metadata"] = self.metadata
        if self.is_weak:
            document["weak"] = True
        if self.aliases:
            document["aliases"] = list(self.aliases)
        if self.groups is not None:
            document["groups"] = {
                "records": stored.records, "spec": stored.spec.to_json(), "form": self.groups.form
            }  # fmt: skip
        return json.dumps(document, indent=1).encode()


def checked_metadata(metadata: Any) -> dict[str, Any]:  # any object that a user gives
    """Return a copy of a user's metadata for a version.

    Raises:
        ConfigurationError: if it is no dict of plain JSON, or too long.
    """
    if type(metadata) is not dict:
        raise ConfigurationError(f"metadata must be a dict, not a {type(metadata).__name__}")
    if LEFT_OUT in metadata:
        raise ConfigurationError(f"metadata: builds keep {LEFT_OUT!r} themselves: give another name")
    _check_json(metadata, "metadata", _METADATA_DEPTH)
    try:
        text = json.dumps(metadata, allow_nan=False)
    except ValueError as error:
        raise ConfigurationError(f"metadata must be JSON: {error}") from error
    if len(text) > MAX_METADATA_BYTES:
        raise ConfigurationError(
            f"metadata takes {len(text)} bytes as JSON, at most {MAX_METADATA_BYTES} are kept: "
            "make it a field of the records, or a dataset of its own"
        )
    copied: dict[str, Any] = json.loads(text)
    return copied


def _check_json(value: Any, where: str, levels: int) -> None:
    if levels < 0:
        raise ConfigurationError(f"metadata is nested more than {_METADATA_DEPTH} deep")
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ConfigurationError(
                    f"the keys of {where:.200} must be str, as JSON's are, not {key!r:.100}"
                )
            _check_json(item, f"{where}[{key!r}]", levels - 1)
    elif type(value) is list:
        for number, item in enumerate(value):
            _check_json(item, f"{where}[{number}]", levels - 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise ConfigurationError(
            f"{where:.200} is a {type(value).__name__}, which JSON lacks: give dict, list, str, int, float, "
            "bool or None"
        )


def shorten_to_limit(manifest: Manifest) -> Manifest:
    """Return the manifest, without the large items of its provenance if it would be too long to read.

    Raises:
        ConfigurationError: if the description of the records alone is too long.
    """
    if not _is_too_large(manifest.to_bytes()):
        return manifest
    sizes = {name: len(json.dumps(value)) for name, value in manifest.builder.items()}
    kept = {name: value for name, value in manifest.builder.items() if sizes[name] <= _SMALL_BYTES}
    left_out = ", ".join(sorted(manifest.builder.keys() - kept.keys()))
    import logging  # not imported for reading

    logging.getLogger("yogadl").warning(
        "yogadl: %s: its manifest does not say what built it: %s would make it too long to read",
        manifest.key,
        left_out,
    )
    shortened = replace(manifest, builder=kept)
    if _is_too_large(shortened.to_bytes()):
        raise ConfigurationError(
            f"{manifest.key}: the names of its fields take more than the {MAX_MANIFEST_BYTES} bytes that a "
            "manifest has at most: shorten them"
        )
    return shortened


def _is_too_large(content: bytes) -> bool:
    """Return whether the content is larger than a manifest may be."""
    return len(content) > MAX_MANIFEST_BYTES or has_many_values(content)


def digest_of(content: bytes) -> str:
    """Return the digest of a manifest's bytes, which pins every byte of the cache."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(content: bytes, key: DatasetKey, where: str) -> Manifest:
    """Return the manifest in `content`, after a check that it belongs to `key`.

    Raises:
        CacheFormatError: if it is cut short, from a newer version, or of another dataset.
    """
    if _is_too_large(content):
        raise CacheFormatError(
            f"{where} is far larger than any manifest: {len(content)} bytes; {_BUILD_AGAIN}"
        )
    try:
        document = parse_json(content, most_digits=MANY_DIGITS)
    except ValueError as error:
        raise CacheFormatError(f"the manifest {where} is damaged: {error}; {_BUILD_AGAIN}") from error
    if not isinstance(document, dict) or type(document.get("format")) is not int:
        raise CacheFormatError(f"{where} is no manifest of a cache; {_BUILD_AGAIN}")
    if document["format"] != FORMAT_VERSION:
        raise CacheFormatError(
            f"{where} has format {document['format']!r:.40}, this library reads {FORMAT_VERSION}: "
            "upgrade yogadl"
        )
    unknown = _unknown_features(document, where)
    if unknown:
        raise CacheFormatError(
            f"{where} needs {', '.join(map(repr, unknown)):.400}, unknown to this library: upgrade yogadl"
        )
    if (document.get("id"), document.get("version")) != (key.id, key.version):
        raise CacheFormatError(
            f"{where} is the manifest of {document.get('id')!r:.200} version "
            f"{document.get('version')!r:.200}, not of {key}; it was copied or renamed by hand"
        )
    return _from_document(document, key, where)


def _unknown_features(document: dict[str, Any], where: str) -> list[str]:
    needs, codecs, table = document.get("needs"), document.get("codec"), document.get("table")
    if not isinstance(needs, list) or not isinstance(codecs, list) or not isinstance(table, dict):
        raise CacheFormatError(
            f"the manifest {where} is damaged: it does not say what it needs; build the dataset again"
        )
    unknown = set(map(str, needs)) - KNOWN_NEEDS
    unknown |= set(map(str, codecs)) - set(CODECS)
    unknown |= {str(table.get("container"))} - {*CONTAINERS, PARQUET}
    return sorted(unknown)


def _from_document(document: dict[str, Any], key: DatasetKey, where: str) -> Manifest:
    try:
        table: dict[str, Any] = document["table"]
        manifest = Manifest(
            key=key,
            spec=Spec.from_json(document["spec"]),
            records=document["records"],
            fingerprint=document["fingerprint"],
            table_sha256=table["sha256"],
            table_bytes=table["bytes"],
            size_bytes=document["bytes"],
            parts=document["parts"],
            created=document["created"],
            builder=document["builder"],
            token=document["token"],
            earlier=tuple(_parse_earlier(entry) for entry in document.get("continues", ())),
            metadata=document.get("metadata", {}),
            codecs=tuple(document["codec"]),
            container=table["container"],
            aliases=tuple(document.get("aliases", ())),
            is_weak=document.get("weak", False),
            groups=_parse_groups(document.get("groups"), table["container"]),
        )
    except (KeyError, TypeError, CacheFormatError) as error:
        problem = f"{error}" if isinstance(error, CacheFormatError) else f"{error!r:.200}"
        raise CacheFormatError(
            f"the manifest {where} is damaged: {problem}; build the dataset again"
        ) from error
    if not _has_valid_types(manifest, document):
        raise CacheFormatError(
            f"the manifest {where} is damaged: a value of the wrong kind; build the dataset again"
        )
    if not _has_possible_sizes(manifest):
        numbers = (manifest.records, manifest.parts, manifest.size_bytes, manifest.table_bytes)
        records, parts, size_bytes, table_bytes = (f"{number!r:.40}" for number in numbers)
        raise CacheFormatError(
            f"the manifest {where} is damaged: no cache has {records} records in {parts} parts of "
            f"{size_bytes} bytes, and a part table of {table_bytes}; build the dataset again"
        )
    return manifest


def adopted_paths(manifest: Manifest) -> list[str]:
    """Return the paths and patterns that a version was adopted from, none if it was not."""
    entry = manifest.builder.get(ADOPTED)
    paths = entry.get("paths") if isinstance(entry, dict) else None
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []


def _parse_earlier(document: dict[str, Any]) -> Earlier:
    """Return an entry of the manifest for a version that this one begins with."""
    earlier = Earlier(document["version"], document["records"], document["fingerprint"])
    texts: tuple[object, ...] = earlier.version, earlier.fingerprint
    is_sound = all(isinstance(text, str) for text in texts) and type(earlier.records) is int
    if not is_sound or not is_version(earlier.version) or not is_hash(earlier.fingerprint, 32):
        raise TypeError(f"not an earlier version: {document!r:.100}")
    return earlier


def _parse_groups(document: Any, container: Any) -> Groups | None:
    """Return the entry of the manifest for groups of rows, which a version of that container has."""
    if container != PARQUET:
        return None
    groups = Groups(document["records"], Spec.from_json(document["spec"]), document["form"])
    numbers: tuple[object, ...] = (groups.records, groups.form)
    if type(numbers[0]) is not int or type(numbers[1]) is not dict:
        raise TypeError(f"not the groups of a version: {document!r:.100}")
    return groups


def _has_valid_types(manifest: Manifest, document: dict[str, Any]) -> bool:
    """Return whether every value has the right type: names become paths, and sizes allocations."""
    table_name: object = manifest.table_sha256
    fingerprint: object = manifest.fingerprint
    builder: object = manifest.builder
    metadata: object = manifest.metadata
    aliases: tuple[object, ...] = manifest.aliases
    is_weak: object = manifest.is_weak
    created: object = manifest.created
    return bool(
        isinstance(table_name, str)
        and is_hash(table_name, 64)
        and isinstance(fingerprint, str)
        and is_hash(fingerprint, 32)
        and isinstance(builder, dict)
        and isinstance(metadata, dict)
        and all(isinstance(alias, str) and is_hash(alias, 32) for alias in aliases)
        and type(is_weak) is bool
        and isinstance(document["token"], str)
        and (type(created) is float or (type(created) is int and abs(created) < 2**63))
        and len(document["codec"]) == len(manifest.stored.spec.fields) > 0
        and len(manifest.spec.fields) > 0
    )


def _has_possible_sizes(manifest: Manifest) -> bool:
    """Return whether the numbers are possible for a cache: each part has at least one record and one page."""
    stored = manifest.stored
    numbers = (manifest.records, stored.records, manifest.table_bytes, manifest.size_bytes, manifest.parts)
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and manifest.records < MAX_RECORDS
        and all(0 <= version.records <= manifest.records for version in manifest.earlier)
        and manifest.size_bytes < MAX_CACHE_BYTES
        and stored.records <= manifest.records
        and manifest.parts <= min(stored.records, manifest.size_bytes // LEAST_PAGE_BYTES)
        and manifest.table_bytes
        <= most_table_bytes(
            len(stored.spec.fields),
            manifest.parts,
            manifest.size_bytes,
            is_foreign=manifest.is_adopted,
        )
    )
