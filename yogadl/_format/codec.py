"""Compress the values of a field, each as a zstd frame of its own, and decode the frames of a batch.

A value whose frame would not be shorter is stored as it is: its stored length is then its own.
"""

import contextlib
import hashlib
import importlib
import reprlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.protocols import Int64s
from yogadl.errors import CacheFormatError, ConfigurationError, MissingDependencyError

RAW: Final = "raw"
ZSTD: Final = "zstd"
CODECS: Final = (RAW, ZSTD)  # a part table gives the number of each field's codec
SAME: Final = "same"  # of a version that comes from another: compress what that has compressed
# Rows of fixed size below this are not compressed: an entry and a frame's header would take what is gained.
LEAST_ROW_BYTES: Final = 256
# A frame of zstd has at most this many bytes for each of its own: 128 KiB in a block of four bytes.
MOST_RATIO: Final = 2**15
MAX_DICTIONARY_BYTES: Final = 2**20
# "auto" compresses a field of a part if a sample shrinks to less than this.
AUTO_RATIO: Final = 0.7
AUTO_BYTES: Final = 2**20  # of the sample, at most
_DICTIONARY_BYTES: Final = 2**18
# Values are given to the trainer up to this size: a dictionary is of use for the beginning of a value.
_TRAINED_BYTES: Final = 2**17
_TRAINED_VALUES: Final = 2**16
_LEAST_SAMPLES: Final = 16
_SAMPLES_PER_DICTIONARY: Final = 16  # the bytes of samples for each byte of a dictionary, at least
_LEAST_GAIN: Final = 0.97  # a dictionary that saves less is not used
_LEVELS: Final = range(1, 23)


@dataclass(frozen=True)
class Zstd:
    """How zstd compresses the values of a field.

    Args:
        level: From 1, the fastest, to 22, the smallest; decoding is about as fast for all.
        dictionary: Whether a dictionary is trained on some of the records, if that pays: it makes values of
            up to some 50 KB that are alike much smaller.

    Example:
        >>> import yogadl
        >>> yogadl.Zstd(level=9)
        Zstd(level=9, dictionary=True)
    """

    level: int = 3
    dictionary: bool = True

    def __post_init__(self) -> None:
        if type(self.level) is not int or self.level not in _LEVELS:
            raise ConfigurationError(f"the level of zstd must be from 1 to 22, not {self.level!r:.100}")
        if type(self.dictionary) is not bool:
            raise ConfigurationError(f"dictionary must be True or False, not {self.dictionary!r:.100}")


FieldCodec = str | Zstd | None
Codec = FieldCodec | Mapping[str, FieldCodec]


def checked_codec(codec: Any) -> Codec:  # any object that a user gives
    """Return a copy of a `codec` argument.

    Raises:
        ConfigurationError: if it is none.
        MissingDependencyError: if it compresses, and the library for it is missing.
    """
    by_field = dict(codec) if isinstance(codec, Mapping) else {"": codec}
    for name, one in by_field.items():
        if type(name) is not str or not (one is None or isinstance(one, Zstd) or one in (ZSTD, "auto")):
            raise ConfigurationError(
                'codec must be None, "zstd", "auto" or yogadl.Zstd(...), or a dict of these by the names of '
                f"fields, not {reprlib.repr(codec)}"
            )
    if any(one is not None for one in by_field.values()):
        _zstandard()
    return by_field if isinstance(codec, Mapping) else codec


def codecs_of(codec: Codec, names: Sequence[str]) -> list[FieldCodec]:
    """Return the codec of each field.

    Raises:
        ConfigurationError: if it names a field that there is not.
    """
    if not isinstance(codec, Mapping):
        return [codec] * len(names)
    unknown = sorted(codec.keys() - set(names))
    if unknown:
        raise ConfigurationError(f"codec names the fields {unknown}, and the records have {list(names)}")
    return [codec.get(name) for name in names]


def zstd_of(codec: str | Zstd) -> Zstd:
    """Return how a field is compressed, if it is."""
    return codec if isinstance(codec, Zstd) else Zstd()


def described(codec: Codec) -> Any:
    """Return a codec as a JSON value."""
    if isinstance(codec, Mapping):
        return {name: described(one) for name, one in sorted(codec.items())}
    return dict(vars(codec)) if isinstance(codec, Zstd) else codec


def recorded_codecs(document: object, names: Iterable[str]) -> dict[str, str | Zstd]:
    """Return the codec of each field that a value of `described`, which may be damaged, has one for."""
    whole = _from_described(document)
    by_field = document if isinstance(document, dict) and whole is None else {}
    found = {name: whole or _from_described(by_field.get(name)) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def _from_described(document: object) -> str | Zstd | None:
    if isinstance(document, dict) and document.keys() == {"level", "dictionary"}:
        with contextlib.suppress(ConfigurationError):  # of other types: a dict of fields of these names
            return Zstd(**document)
    return document if isinstance(document, str) and document in (ZSTD, "auto") else None


def codec_in_words(document: object) -> str:
    """Return a value of `described` as text, as the command takes it."""
    found = _from_described(document)
    if isinstance(found, Zstd):
        return f"zstd:{found.level}" + ("" if found.dictionary else " without dictionary")
    if isinstance(document, dict):
        return ", ".join(f"{name}={codec_in_words(one)}" for name, one in document.items())
    return found or "none"


def _zstandard() -> Any:  # a module that is not there everywhere
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingDependencyError(
            "compressed fields need zstandard: pip install 'yogadl[zstd]'"
        ) from error


class Encoder:
    """Compresses values. Not thread-safe.

    Args:
        codec: How.
        dictionary: The dictionary; empty for none.
    """

    def __init__(self, codec: Zstd, dictionary: bytes = b"") -> None:
        zstandard = _zstandard()
        self.dictionary_sha256 = name_of(dictionary)
        self._zstandard = zstandard
        known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._compressor = zstandard.ZstdCompressor(level=codec.level, dict_data=known, write_dict_id=False)

    def encode(self, data: NDArray[np.uint8], lengths: Int64s) -> tuple[NDArray[np.uint8], Int64s]:
        """Return the stored form of values that lie back to back, and its lengths."""
        stored = lengths.copy()
        chosen = np.flatnonzero(lengths)  # the library divides by the number of values, so there must be one
        if not len(chosen):
            return data, stored
        starts = np.cumsum(lengths) - lengths
        segments = np.stack([starts[chosen], lengths[chosen]], axis=1).astype(np.uint64)
        values = self._zstandard.BufferWithSegments(np.ascontiguousarray(data), segments.tobytes())
        frames = self._compressor.multi_compress_to_buffer(values, threads=1)
        pieces = []
        for place, number in enumerate(chosen.tolist()):
            frame = frames[place]
            if len(frame) < lengths[number]:
                stored[number] = len(frame)
                pieces.append(frame)
            else:
                pieces.append(values[place])
        return np.frombuffer(b"".join(pieces), np.uint8), stored


def name_of(dictionary: bytes) -> str:
    """Return the name of a dictionary: the sha256 of its bytes; empty for none."""
    return hashlib.sha256(dictionary).hexdigest() if dictionary else ""


def trained(codec: Zstd, data: NDArray[np.uint8], lengths: Int64s) -> bytes:
    """Return a dictionary for values like these; empty if none is worth its bytes.

    One that is trained on a quarter of the values tells by another quarter whether a dictionary pays; then
    all are trained on.
    """
    ends = np.cumsum(lengths)
    chosen = np.flatnonzero(lengths)[:_TRAINED_VALUES].tolist()
    values = [data[ends[n] - lengths[n] : ends[n]][:_TRAINED_BYTES].tobytes() for n in chosen]
    # The trainer tests on the last quarter of what it gets, so its order must not be that of the source.
    values = [values[number] for number in np.random.default_rng(0).permutation(len(values)).tolist()]
    others = values[1::4]
    dictionary = _trained(values[::4])
    if not dictionary:
        return b""
    lengths = np.fromiter(map(len, others), np.int64, len(others))
    whole = np.frombuffer(b"".join(others), np.uint8)
    with_it, without = (Encoder(codec, known).encode(whole, lengths)[1].sum() for known in (dictionary, b""))
    return _trained(values) if with_it < _LEAST_GAIN * without else b""


def _trained(values: list[bytes]) -> bytes:
    """Return a dictionary for some values; empty if they are too few, or nothing repeats."""
    zstandard = _zstandard()
    size_bytes = min(_DICTIONARY_BYTES, sum(map(len, values)) // _SAMPLES_PER_DICTIONARY)
    if len(values) < _LEAST_SAMPLES:
        return b""
    try:
        found: bytes = zstandard.train_dictionary(size_bytes, values).as_bytes()
    except zstandard.ZstdError:
        return b""
    return found


class Decoder:
    """Decodes frames that were made with the same dictionary. Safe to use from several threads.

    Args:
        dictionary: The dictionary; empty for none.

    Raises:
        CacheFormatError: if the dictionary is damaged.
    """

    def __init__(self, dictionary: bytes) -> None:
        self._zstandard = _zstandard()
        self._dictionary = self._zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._of_thread = threading.local()
        self._decompressor()  # a damaged dictionary is refused at once

    def _decompressor(self) -> Any:
        """Return this thread's own."""
        found = vars(self._of_thread).get("decompressor")
        if found is None:
            try:
                found = self._zstandard.ZstdDecompressor(dict_data=self._dictionary)
            except self._zstandard.ZstdError as error:
                raise CacheFormatError(
                    f"the dictionary of compressed values is damaged ({error}): build the dataset again"
                ) from error
            self._of_thread.decompressor = found
        return found

    def decode(self, frames: Sequence[Any], lengths: Int64s) -> Sequence[Any]:
        """Return the values in frames, given what the entries say of their lengths: a buffer each.

        Raises:
            CacheFormatError: if a frame has another length, or is damaged; no memory is taken for the first.
        """
        decompressor = self._decompressor()
        try:
            if list(map(self._zstandard.frame_content_size, frames)) != lengths.tolist():
                raise CacheFormatError(_DAMAGED)
            return list(map(decompressor.decompress, frames))
        except self._zstandard.ZstdError as error:
            raise CacheFormatError(f"{_DAMAGED} ({error})") from error


class Decoders:
    """The decoders of a cache's values, made at their first use, by the number of the dictionary or -1.

    Args:
        names: The names of the dictionaries.
        read: Returns a dictionary by its name.
    """

    def __init__(self, names: Sequence[str], read: Callable[[str], bytes]) -> None:
        self._names = names
        self._read = read
        self._made: dict[int, Decoder] = {}

    def __getitem__(self, number: int) -> Decoder:
        found = self._made.get(number)
        if found is None:
            dictionary = b"" if number < 0 else self._read(self._names[number])
            found = self._made[number] = Decoder(dictionary)
        return found


_DAMAGED: Final = (
    "a compressed value is damaged, or is not what its entry says: run storage.verify, then build again"
)
