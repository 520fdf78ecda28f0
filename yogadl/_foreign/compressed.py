"""Refuse a file that is compressed as a whole: it can be read only from its front."""

from typing import Final

from yogadl._foreign.file_reader import FileReader

# What such files begin with, and the command that decompresses them.
_MAGIC: Final = (
    (b"\x1f\x8b\x08", "gzip", "gunzip"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
_BZIP2_BLOCKS: Final = (b"1AY&SY", b"\x17rE8P\x90")  # of a first block, and of the end of an empty file


def refuse_compressed(reader: FileReader, library: str) -> None:
    """Refuse a file that begins as a compressed one does.

    Args:
        reader: The file.
        library: What reads such files from their front, for the error.

    Raises:
        UnsupportedDataError: if it does.
    """
    head = bytes(reader.read(0, min(10, reader.size_bytes)))
    for magic, name, command in _MAGIC:
        if head.startswith(magic) and (name != "bzip2" or head[4:] in _BZIP2_BLOCKS):
            reader.refuse(
                0,
                f"the file is compressed by {name}, and can be read only from its front: decompress it first "
                f"({command}), or read it with {library} and submit the records",
            )
