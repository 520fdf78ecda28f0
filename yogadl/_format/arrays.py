"""Store named arrays in one small file: part indexes and part tables.

The layout is that of safetensors (a JSON header, then the arrays back to back), so that any reader of
safetensors can open the file.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen, parse_json
from yogadl.errors import CacheFormatError

_CODES = {"I64": "<i8", "U64": "<u8", "U8": "|u1"}
_ALIGNMENT = 64
_MAX_HEADER_BYTES = 2**24


@frozen
class ArrayFile:
    """Arrays by name, and a JSON document with them."""

    arrays: Mapping[str, NDArray[Any]]
    document: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the file's bytes; the same content gives the same bytes."""
        header: dict[str, Any] = {"__metadata__": {"yogadl": json.dumps(self.document, sort_keys=True)}}
        pieces = []
        position = 0
        for name, array in sorted(self.arrays.items()):
            code = next(code for code, dtype in _CODES.items() if array.dtype == np.dtype(dtype))
            end = position + array.nbytes
            header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [position, end]}
            pieces.append(array.tobytes())
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        # Padding the header with spaces puts the arrays on an aligned position.
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        return b"".join([len(text).to_bytes(8, "little"), text, *pieces])

    @staticmethod
    def from_buffer(buffer: Any, what: str) -> "ArrayFile":  # any object with the buffer protocol
        """Return the arrays as read-only views of `buffer`, checked against its size.

        Raises:
            CacheFormatError: if the buffer holds no such file; the error names `what`.
        """
        view = memoryview(buffer)
        try:
            length = int.from_bytes(view[:8], "little")
            if len(view) < 8 or not 2 <= length <= len(view) - 8:
                raise ValueError("it is cut short")
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {length} bytes, more than {_MAX_HEADER_BYTES}")
            text = bytes(view[8 : 8 + length])
            header = parse_json(text)
            document = parse_json(header.pop("__metadata__")["yogadl"])
            body = view[8 + length :]
            arrays = {name: _array(entry, body) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise CacheFormatError(
                f"{what} is damaged: {error!s:.200}; build the dataset again, or copy it anew"
            ) from error
        return ArrayFile(arrays, document)


def _array(entry: dict[str, Any], body: memoryview) -> NDArray[Any]:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(body):
        raise ValueError("it is cut short")
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array has no shape")
    array = np.frombuffer(body[start:end], _CODES[entry["dtype"]]).reshape(shape)
    array.flags.writeable = False
    return array
