"""The manifest: the small JSON document that makes a cache exist."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from yogadl._format.layout import CODEC, CONTAINER
from yogadl._key import DatasetKey
from yogadl._leaf import OBJECT
from yogadl._spec import Spec
from yogadl.errors import CacheFormatError

FORMAT_VERSION: Final = 1
# What this library can do; a manifest that needs anything else is refused by that name.
KNOWN_NEEDS: Final = frozenset({"pickle"})
NEEDS_PICKLE: Final = "pickle"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class Manifest:
    """Describe one published dataset version. Immutable; its bytes are its identity.

    Args:
        key: Which dataset this is.
        spec: The structure of a record.
        records: How many there are.
        fingerprint: The hash of the content.
        table_sha256: The name of the part table.
        table_bytes: Its size.
        size_bytes: The size of all parts.
        parts: How many there are.
        created: When, in seconds since 1970.
        builder: Where the cache came from: the builder's source code, its arguments, library versions.
        token: Told apart from any other publication, even of the same content.
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

    @property
    def needs(self) -> list[str]:
        """The features that a reader must know."""
        return [NEEDS_PICKLE] if any(f.leaf.dtype == OBJECT for f in self.spec.fields) else []

    def to_bytes(self) -> bytes:
        """Return the manifest's file."""
        document = {
            "format": FORMAT_VERSION,
            "needs": self.needs,
            "id": self.key.id,
            "version": self.key.version,
            "records": self.records,
            "fingerprint": self.fingerprint,
            "spec": self.spec.to_json(),
            "codec": [CODEC] * len(self.spec.fields),
            "table": {"container": CONTAINER, "sha256": self.table_sha256, "bytes": self.table_bytes},
            "bytes": self.size_bytes,
            "parts": self.parts,
            "created": self.created,
            "builder": self.builder,
            "token": self.token,
        }
        return json.dumps(document, indent=1).encode()


def digest_of(content: bytes) -> str:
    """Return the digest of a manifest's bytes, which pins every byte of the cache."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(content: bytes, key: DatasetKey, where: str) -> Manifest:
    """Return the manifest in `content`, checked to be that of `key`.

    Raises:
        CacheFormatError: if it is cut short, from a newer version, or of another dataset.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CacheFormatError(
            f"the manifest {where} is damaged: {error}; delete this version and build it again"
        ) from error
    if not isinstance(document, dict) or type(document.get("format")) is not int:
        raise CacheFormatError(f"{where} is no manifest of a cache")
    if document["format"] != FORMAT_VERSION:
        raise CacheFormatError(
            f"{where} has format {document['format']}, this library reads {FORMAT_VERSION}: upgrade yogadl"
        )
    unknown = _unknown_features(document, where)
    if unknown:
        raise CacheFormatError(
            f"{where} needs {', '.join(map(repr, unknown))}, unknown to this library: upgrade yogadl"
        )
    if (document.get("id"), document.get("version")) != (key.id, key.version):
        raise CacheFormatError(
            f"{where} is the manifest of {document.get('id')!r} version {document.get('version')!r}, "
            f"not of {key}; it was copied or renamed by hand"
        )
    return _from_document(document, key, where)


def _unknown_features(document: dict[str, Any], where: str) -> list[str]:
    needs, codecs, table = document.get("needs"), document.get("codec"), document.get("table")
    if not isinstance(needs, list) or not isinstance(codecs, list) or not isinstance(table, dict):
        raise CacheFormatError(
            f"the manifest {where} is damaged: it does not say what it needs; build the dataset again"
        )
    unknown = set(map(str, needs)) - KNOWN_NEEDS
    unknown |= set(map(str, codecs)) - {CODEC}
    unknown |= {str(table.get("container"))} - {CONTAINER}
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
        )
    except (KeyError, TypeError) as error:
        raise CacheFormatError(
            f"the manifest {where} is damaged: {error!r}; build the dataset again"
        ) from error
    table_name: object = manifest.table_sha256
    fingerprint: object = manifest.fingerprint
    builder: object = manifest.builder
    numbers = (manifest.records, manifest.table_bytes, manifest.size_bytes, manifest.parts)
    # Names become paths, and sizes allocations: nothing else than these may pass.
    if not (
        isinstance(table_name, str)
        and _SHA256.fullmatch(table_name)
        and isinstance(fingerprint, str)
        and isinstance(builder, dict)
        and isinstance(document["token"], str)
        and type(document["created"]) in (int, float)
        and all(type(number) is int and number >= 0 for number in numbers)
        and len(document["codec"]) == len(manifest.spec.fields)
    ):
        raise CacheFormatError(
            f"the manifest {where} is damaged: a value of the wrong kind; build the dataset again"
        )
    return manifest
