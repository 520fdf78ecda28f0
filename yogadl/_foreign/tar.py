"""Walk the regular files of a tar archive: ustar, GNU and pax headers."""

from collections.abc import Iterator
from typing import Final
from zlib import adler32

from yogadl._core.columns import MAX_LEAF_BYTES
from yogadl._foreign.compressed import refuse_compressed
from yogadl._foreign.file_reader import FileReader

_BLOCK: Final = 512
_ZEROS: Final = bytes(_BLOCK)
_REGULAR: Final = b"0\x007"
_LONG_NAME, _LONG_LINK_NAME, _GLOBAL_PAX = b"L", b"K", b"g"
_EXTENDED: Final = b"LKgxX"
_DIRECTORY: Final = b"5"
_REFUSED: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"M": "a part of a file that begins in another archive",
}
# GNU tar's own headers have times where those of POSIX have the first part of the name.
_GNU_MAGIC: Final = b"ustar  \0"
_MAX_PAX_BYTES: Final = 2**20
# The bytes behind the end of an archive that are looked at together.
_TAIL_BYTES: Final = 2**20
_WAY_OUT: Final = (
    "pack the archive anew, without links and sparse files (tar --dereference --hard-dereference)"
)


def members(reader: FileReader) -> Iterator[tuple[str, int, int, int]]:
    """Yield the regular files of an archive in order: name, first header's position, position and size.

    A block of zeros ends the archive.

    Raises:
        UnsupportedDataError: if the archive is compressed, cut or damaged, has a member of another kind, or
            if another archive follows.
    """
    refuse_compressed(reader, "webdataset")
    if not reader.size_bytes:
        reader.refuse(0, "the file is empty, which no tar archive is")
    position = start = 0
    given: dict[bytes, bytes] = {}  # what the headers before a member's own say of it
    while position < reader.size_bytes:
        header = bytes(reader.read(position, _BLOCK))
        if header == _ZEROS:
            _refuse_another(reader, position)
            break
        _check_sum(reader, position, header)
        kind = header[156:157]
        size = _number(reader, position, header[124:136])
        content = position + _BLOCK
        if kind in _EXTENDED:
            _add_extended(reader, position, kind, size, given)
            position = _end(reader, position, size)
            continue
        if b"size" in given:
            size = _decimal(reader, position, given[b"size"])
        if kind not in _REGULAR and kind != _DIRECTORY:
            what = _REFUSED.get(kind, f"a member of the unknown kind {kind!r}")
            reader.refuse(position, f"{_name(reader, position, header, given)!r} is {what}: {_WAY_OUT}")
        name = _name(reader, position, header, given)
        # Archives older than POSIX have no kind of directories but the slash.
        if kind == _DIRECTORY or (kind == b"\0" and name.endswith("/")):
            position = content
        else:
            end = _end(reader, position, size)
            if size > MAX_LEAF_BYTES:
                reader.refuse(position, f"{name!r} has {size} bytes, more than {MAX_LEAF_BYTES}")
            position = end
            yield name.rstrip("/") if b"path" in given else name, start, content, size
        start = position
        given = {}
    if start != position:
        reader.refuse(position, "the archive ends after the extended header of a member, before its own")
    if position >= reader.size_bytes:
        reader.refuse(
            position,
            "the archive has no end: it is cut, or was not closed by its writer. If nothing is missing, "
            "append zeros (truncate -s +1024 FILE)",
        )


def _refuse_another(reader: FileReader, position: int) -> None:
    """Refuse an archive that follows the zeros that end the first one: no program would read its members."""
    for begin in range(position, reader.size_bytes, _TAIL_BYTES):
        tail = bytes(reader.read(begin, min(_TAIL_BYTES, reader.size_bytes - begin)))
        zeros = len(tail) - len(tail.lstrip(b"\0"))
        if zeros == len(tail):
            continue
        begin += zeros // _BLOCK * _BLOCK
        if bytes(reader.read(begin, min(_BLOCK, reader.size_bytes - begin)))[257:262] == b"ustar":
            reader.refuse(
                begin,
                "another archive begins there, behind the end of the first one: the members in it would "
                "be lost. Join archives by tar --concatenate, not by cat",
            )
        return


def _end(reader: FileReader, position: int, size: int) -> int:
    """Return where a member ends whose header is at `position`; refuse one that the file cuts."""
    end = position + _BLOCK + -(-size // _BLOCK) * _BLOCK
    if end > reader.size_bytes:
        reader.refuse(position, f"the file is cut: a member ends at {end}, the file at {reader.size_bytes}")
    return end


def _check_sum(reader: FileReader, position: int, header: bytes) -> None:
    stored = _number(reader, position, header[148:156])
    # The stored checksum is summed as if it were spaces.
    total = _sum(header) - sum(header[148:156]) + 8 * 32
    if stored == total:
        return
    # Some old programs add signed characters.
    if stored != total - 256 * sum(byte > 127 for byte in header[:148] + header[156:]):
        reader.refuse(position, "this is no header of a tar archive: its checksum differs")


def _sum(header: bytes) -> int:
    """Return the sum of the bytes, five times as fast as `sum`: Adler-32 has it, plus one, modulo 65521."""
    half = _BLOCK // 2
    return (adler32(header[:half]) & 0xFFFF) + (adler32(header[half:]) & 0xFFFF) - 2


def _number(reader: FileReader, position: int, digits: bytes) -> int:
    """Return a number of a header, which is octal, or binary if its first bit is set."""
    if digits[0] == 0x80:
        return int.from_bytes(digits[1:], "big")
    text = digits.split(b"\0", 1)[0].strip(b" ")
    if not text:
        return 0
    # int() accepts signs and underscores, too.
    if not text.isdigit() or b"8" in text or b"9" in text:
        reader.refuse(position, f"this is no header of a tar archive: {digits!r} is not a number")
    return int(text, 8)


def _decimal(reader: FileReader, position: int, digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        reader.refuse(position, f"the size of a member is {digits!r:.40}")
    return int(digits)


def _name(reader: FileReader, position: int, header: bytes, given: dict[bytes, bytes]) -> str:
    name = given.get(b"path", b"")
    if not name:
        name = header[:100].split(b"\0", 1)[0]
        if header[345] and header.startswith(b"ustar", 257) and not header.startswith(_GNU_MAGIC, 257):
            name = header[345:500].split(b"\0", 1)[0] + b"/" + name
    try:
        return name.decode()
    except UnicodeDecodeError:
        reader.refuse(position, f"a name is not UTF-8: {name!r}: rename the file, and pack the archive anew")


def _add_extended(
    reader: FileReader, position: int, kind: bytes, size: int, given: dict[bytes, bytes]
) -> None:
    """Take from an extended header what it says of the next member; the first header that says it counts."""
    if size > _MAX_PAX_BYTES:
        reader.refuse(position, f"an extended header has {size} bytes, more than {_MAX_PAX_BYTES}")
    content = bytes(reader.read(position + _BLOCK, size))
    if kind == _LONG_NAME:
        given.setdefault(b"path", content.split(b"\0", 1)[0])
    elif kind != _LONG_LINK_NAME:
        for keyword, value in _pax_records(reader, position + _BLOCK, content).items():
            if keyword.startswith(b"GNU.sparse."):
                reader.refuse(position, f"an extended header describes a sparse file: {_WAY_OUT}")
            if keyword in (b"path", b"size"):
                if kind == _GLOBAL_PAX:
                    reader.refuse(position, f"one {keyword.decode()} is given for all members: {_WAY_OUT}")
                given.setdefault(keyword, value)


def _pax_records(reader: FileReader, position: int, content: bytes) -> dict[bytes, bytes]:
    """Return the keywords of a pax header: records such as "12 size=345" with a line feed, which counts."""
    found: dict[bytes, bytes] = {}
    begin = 0
    while begin < len(content) and content[begin]:
        digits = content[begin : begin + 8].split(b" ", 1)[0]
        end = begin + int(digits) if digits.isdigit() else 0
        keyword, equals, value = content[begin + len(digits) + 1 : end].partition(b"=")
        if not equals or not keyword or end > len(content) or not value.endswith(b"\n"):
            reader.refuse(position + begin, "this is no record of a pax header")
        found[keyword] = value[:-1]
        begin = end
    return found
