"""Read a bucket without a mirror: keep no files of it on a disk of this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from yogadl._core.key import DatasetKey
from yogadl._format.manifest import Manifest
from yogadl.errors import ConfigurationError
from yogadl.storage._buckets.bucket import Bucket
from yogadl.storage._cached import Published
from yogadl.storage._mirror.mirror import Mirror
from yogadl.storage._mirror.transfer import Progress


class NoMirror(Mirror):
    """A mirror that keeps nothing, for ``mirror=None``.

    Builds still use a disk, this machine's temporary storage, and remove their files when they end.
    """

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)

    def __reduce__(self) -> Any:
        return NoMirror, (self._bucket,)

    def hold(self, manifest: Manifest) -> NoReturn:
        """Refuse to hold files."""
        raise self._none(f"hold {manifest.key}")

    def fill(self, manifest: Manifest, *, progress: Progress | None = None) -> NoReturn:
        """Refuse to download anything."""
        raise self._none(f"download {manifest.key}")

    def mend(self, manifest: Manifest) -> tuple[int, list[str]]:
        """Return that no files are here."""
        return 0, []

    def kept(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return that no version is here."""
        return None

    def known(self, key: DatasetKey, digest: str | None = None) -> Published | None:
        """Return that no version is known here."""
        return None

    def keep(self, published: Published) -> list[str]:
        """Keep nothing."""
        return []

    def read_file(self, name: str, most_bytes: int) -> bytes | None:
        """Return that no file is here."""
        return None

    def keep_file(self, name: str, content: bytes) -> None:
        """Keep nothing."""

    def keep_newest(self, published: Published) -> None:
        """Note nothing."""

    def renew(self, key: DatasetKey, digest: str | None) -> None:
        """Note nothing."""

    def tagged(self, key: DatasetKey) -> str | None:
        """Return that no tag is known here."""
        return None

    def note_tag(self, key: DatasetKey, version: str | None) -> None:
        """Note nothing."""

    def adopt(self, files: Mapping[str, Path]) -> bool:
        """Take nothing."""
        return False

    def _none(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"there is no mirror to {what} to: this storage was opened with mirror=None; name a folder"
        )
