"""Name the foreign files of a cache: files that are not its own, whose values it reads where they lie."""

import hashlib
import json
from functools import cached_property

from yogadl._core.frozen import frozen


@frozen
class ForeignFile:
    """One state of a foreign file; a file that was changed is another one.

    Args:
        address: The path of a local file, or the URL of an object.
        size_bytes: Its size.
        tag: The object's ETag or generation; of a local file the time of its last change, in nanoseconds.
    """

    address: str
    size_bytes: int
    tag: str

    @cached_property
    def sha256(self) -> str:
        """The name of this state of the file."""
        text = json.dumps([self.address, self.size_bytes, self.tag], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
