"""How versions are built: the options that users give, which are checked before a build begins."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from yogadl._core.arguments import bool_argument, int_argument, value_argument
from yogadl._core.frozen import frozen
from yogadl._format.codec import SAME, Codec, checked_codec
from yogadl._format.manifest import checked_metadata
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from yogadl._core.forms import Forms
    from yogadl._core.progress import Progress

# The executors of yogadl, by name: the module and class of each.
ENGINES: Final = {"ray": ("yogadl.adapters.ray", "RayExecutor")}


@frozen
class BuildOptions:
    """How a version is built, whatever its records are.

    Args:
        engine: Any `concurrent.futures.Executor`, or "ray", whose tasks read the source instead of workers.
        part_bytes: The largest size of a part; ``None`` lets parts grow up to 1 GiB, in a bucket 256 MiB.
        progress: Whether to show a progress bar; ``None``: only on a terminal; or a function of (records so
            far, records in all or None, bytes so far).
        check_space: Whether to refuse, before anything is read, a build that certainly needs more space than
            the disk has: of arrays, tables and other sources with known length and shapes, of which fields
            with a codec are not counted.
        metadata: Facts to keep with the version, as plain JSON of at most 64 KiB, such as the names of
            classes: `RecordsRef.metadata` returns them. They are not part of the fingerprint. If not given, a
            version that continues another, or is a copy of it, has those of that version.

    Raises:
        ConfigurationError: if a value is invalid.

    Example:
        >>> import yogadl
        >>> storage = yogadl.open_storage("caches")
        >>> named = yogadl.BuildOptions(metadata={"classes": ["cat", "dog"]}, progress=False)
        >>> storage.submit([0, 1, 1], "pets", "1", build=named).metadata
        {'classes': ['cat', 'dog']}
    """

    engine: "Executor | str | None" = None
    part_bytes: int | None = None
    progress: "bool | Progress | None" = None
    check_space: bool = True
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.metadata is not None:
            vars(self)["metadata"] = checked_metadata(self.metadata)
        bool_argument("check_space", self.check_space)
        if not (
            self.engine is None or self.engine in ENGINES or callable(getattr(self.engine, "submit", None))
        ):
            raise ConfigurationError(
                'engine must be "ray", or an executor as those of concurrent.futures, not '
                f"{self.engine!r:.100}"
            )
        if self.part_bytes is not None and (type(self.part_bytes) is not int or self.part_bytes < 1):
            raise ConfigurationError(
                f"part_bytes must be a positive number of bytes, not {self.part_bytes!r}"
            )


@frozen
class RecordOptions:
    """How the records of a source are read.

    Args:
        spec: Of records that are read one by one: what their fields are where the first 1,024 don't show it,
            as a tree like the record's with a `yogadl.Leaf` for each such field, such as
            ``{"score": yogadl.Leaf("float64")}``.
        on_error: "raise": a record that raises an error while it is read ends the build. "skip": it is left
            out, of an object with ``__len__`` and ``__getitem__`` or a `DataRef`; the version's metadata list
            them as ``"left_out"``. A record that does not fit the others is an error in any case.
        allow_pickle: Whether objects without a stored form may be pickled, and read where the call returns
            an existing version.

    Raises:
        ConfigurationError: if a value is invalid.

    Example:
        >>> import yogadl
        >>> storage = yogadl.open_storage("caches")
        >>> scores = yogadl.RecordOptions(spec={"score": yogadl.Leaf("float64")})
        >>> ref = storage.submit([{"score": 1}, {"score": 2}], "scores", "1", records=scores)
        >>> ref[0]["score"].item()
        1.0
    """

    spec: Any = None
    on_error: Literal["raise", "skip"] = "raise"
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ConfigurationError(f'on_error must be "raise" or "skip", not {self.on_error!r:.100}')
        bool_argument("allow_pickle", self.allow_pickle)


@frozen
class FileOptions:
    """What is rarely said of files that `CacheStorage.adopt` reads where they lie.

    Args:
        read: Whether all files are read through, for checksums and the fingerprint that a cache of the same
            records has. If not, the files' own indexes and headers are trusted, and the fingerprint is made
            of their sizes and tags. By default they are read, but of ``"parquet"`` only the footers.
        features: Of ``"tfrecord"``: the features of a `tf.train.Example`, each with its dtype, or with dtype
            and shape; if not given, a record is the bytes.
        base_version: A version whose records come before those of the files, adopted or not.
        json: Of ``"parquet"``: the names of columns that are json values.

    Example:
        >>> import pathlib, yogadl
        >>> sizes = [pathlib.Path(f"{name}.jsonl").write_text('{"a": 1}') for name in "xy"]
        >>> storage = yogadl.open_storage("caches")
        >>> old = storage.adopt("x.jsonl", "lines", "1", parse=True)
        >>> after = yogadl.FileOptions(base_version="1")
        >>> len(storage.adopt("y.jsonl", "lines", "2", parse=True, files=after))
        2
    """

    read: bool | None = None
    features: Mapping[str, Any] | None = None
    base_version: str | None = None
    json: Sequence[str] = ()


@frozen
class BuildTerms:
    """All that a call says of a build and its records.

    Args:
        workers: How many processes read the source; with 0 or 1, this process does. More need random access,
            or partitions.
        codec: How values are compressed; ``"same"`` where a version continues another, or has its records.
        json: The names of fields that are json values.
        missing: What comes in the place of missing values, by the names of fields.
        build: How the version is built.
        records: How the records are read.
    """

    workers: int = 0
    codec: Codec = None
    json: Sequence[str] = ()
    missing: "Mapping[str, Any] | None" = None
    build: BuildOptions = BuildOptions()
    records: RecordOptions = RecordOptions()

    def __post_init__(self) -> None:
        if int_argument("workers", self.workers) > 1 and self.build.engine is not None:
            raise ConfigurationError("an engine has its own workers: leave out workers, or engine")
        if type(self.json) is not tuple or self.json or self.missing is not None:
            self.forms()  # checks both
        if self.codec != SAME:
            vars(self)["codec"] = checked_codec(self.codec)

    def without(self, method: str, *names: str) -> "BuildTerms":
        """Return these terms, of which some options have no effect on a method.

        Raises:
            ConfigurationError: if one of those is given.
        """
        for options in (self.build, self.records):
            for each in fields(options):
                if each.name in names and getattr(options, each.name) != each.default:
                    kind = type(options).__name__
                    raise ConfigurationError(
                        f"{method} has no use for {each.name} of yogadl.{kind}: leave it out"
                    )
        return self

    @property
    def is_skipping(self) -> bool:
        """Whether records that can't be read are left out."""
        return self.records.on_error == "skip"

    def forms(self, like: Any = None) -> "Forms":
        """Return what is said about the values of records; `like` is the structure of records before them."""
        from yogadl._core.forms import forms_of  # a hit needs no more than the checks of its arguments

        said = self.records
        forms = forms_of(self.json, self.missing, like, allow_pickle=said.allow_pickle, spec=said.spec)
        return replace(forms, continues=like is not None)


def terms_of(
    workers: int = 0,
    codec: Codec = None,
    json: Sequence[str] = (),
    missing: Mapping[str, Any] | None = None,
    build: BuildOptions | None = None,
    records: RecordOptions | None = None,
) -> BuildTerms:
    """Return what a call says of a build and its records; the arguments are those of `CacheStorage.submit`.

    Raises:
        ConfigurationError: if a value is invalid.
    """
    how = value_argument("build", build, BuildOptions)
    return BuildTerms(workers, codec, json, missing, how, value_argument("records", records, RecordOptions))
