"""Read the tables of a flatbuffer, which may have any bytes."""

import struct
from typing import Final

from yogadl._core.frozen import frozen

_SIZES: Final = {code: struct.calcsize(f"<{code}") for code in "bBhHiIqQ"}
_MAX_STRING_BYTES: Final = 2**12


@frozen
class Table:
    """A table in a flatbuffer.

    Every method raises ValueError if the table, or what it refers to, lies outside of the buffer. A table may
    be referred to many times: who walks through tables limits their number.

    Args:
        content: The flatbuffer.
        position: Where the table begins.
    """

    content: bytes
    position: int

    @staticmethod
    def root_of(content: bytes) -> "Table":
        """Return the table in which a flatbuffer begins."""
        return Table(content, _number(content, 0, "I"))

    def integer(self, slot: int, code: str, default: int = 0) -> int:
        """Return the integer in a slot, whose code is one of `struct`."""
        place = self._place(slot)
        return default if place is None else _number(self.content, place, code)

    def table(self, slot: int) -> "Table | None":
        """Return the table in a slot, None if it is empty."""
        place = self._target(slot)
        return None if place is None else Table(self.content, place)

    def text(self, slot: int) -> str:
        """Return the text in a slot, "" if it is empty."""
        place = self._target(slot)
        if place is None:
            return ""
        length = _number(self.content, place, "I")
        if length > min(_MAX_STRING_BYTES, len(self.content) - place - 4):
            raise ValueError(f"a text of {length} bytes")
        return self.content[place + 4 : place + 4 + length].decode()

    def tables(self, slot: int) -> list["Table"]:
        """Return the tables of the vector in a slot."""
        place, count = self._vector(slot, 4)
        places = range(place, place + 4 * count, 4)
        return [Table(self.content, at + _number(self.content, at, "I")) for at in places]

    def integers(self, slot: int) -> list[int]:
        """Return the 64-bit integers of the vector in a slot."""
        place, count = self._vector(slot, 8)
        return list(struct.unpack_from(f"<{count}q", self.content, place))

    def structs(self, slot: int) -> list[tuple[int, int]]:
        """Return the pairs of 64-bit integers of the vector in a slot."""
        place, count = self._vector(slot, 16)
        numbers = struct.unpack_from(f"<{2 * count}q", self.content, place)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        place = self._target(slot)
        if place is None:
            return 0, 0
        count = _number(self.content, place, "I")
        if count > (len(self.content) - place - 4) // item_bytes:
            raise ValueError(f"a vector of {count} items")
        return place + 4, count

    def _target(self, slot: int) -> int | None:
        place = self._place(slot)
        return None if place is None else place + _number(self.content, place, "I")

    def _place(self, slot: int) -> int | None:
        start = self.position - _number(self.content, self.position, "i")
        if 4 + 2 * slot + 2 > _number(self.content, start, "H"):
            return None
        offset = _number(self.content, start + 4 + 2 * slot, "H")
        return self.position + offset if offset else None


def _number(content: bytes, position: int, code: str) -> int:
    if not 0 <= position <= len(content) - _SIZES[code]:
        raise ValueError(f"it refers to byte {position} of {len(content)}")
    number: int = struct.unpack_from(f"<{code}", content, position)[0]
    return number
