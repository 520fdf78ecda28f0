"""The options of a build, checked before it begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from yogadl._core.arguments import int_argument
from yogadl._core.forms import Forms, forms_of
from yogadl._format.codec import SAME, Codec, checked_codec
from yogadl._format.manifest import checked_metadata
from yogadl.errors import ConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from yogadl._core.progress import Progress

# The executors of yogadl, by name: the module and class of each.
ENGINES: Final = {"ray": ("yogadl.adapters.ray", "RayExecutor")}


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build that do not change its records.

    Args:
        workers: How many processes read the source; with 0 or 1, this process does. More need random access,
            or partitions.
        part_bytes: Parts are sealed before they hold more; ``None`` is the storage's own choice.
        allow_pickle: Whether objects without a stored form may be pickled.
        progress: ``True`` or ``False`` for a progress bar or none, ``None`` for one on a terminal, or a
            function of (records so far, records in all or None, bytes so far).
        check_space: Whether to refuse a build that certainly needs more space than the disk has.
        engine: Any executor, or the name of one in `ENGINES`, whose tasks read the source in place of worker
            processes.
        metadata: What is kept with the version; ``None``: what the version that this one continues has.
        on_error: "skip": records that can't be read are left out. "raise": they end the build.
        codec: How values are compressed; ``"same"`` where a version continues another, or has its records.
        json: The names of fields that are json values.
        missing: What comes in the place of missing values, by the names of fields.
        spec: What the caller declares of the records' fields.
    """

    workers: int = 0
    part_bytes: int | None = None
    allow_pickle: bool = False
    progress: "bool | Progress | None" = None
    check_space: bool = True
    engine: "Executor | str | None" = None
    metadata: dict[str, Any] | None = None
    on_error: str = "raise"
    codec: Codec = None
    json: Sequence[str] = ()
    missing: "Mapping[str, Any] | None" = None
    spec: Any = None

    def __post_init__(self) -> None:
        int_argument("workers", self.workers)
        self.forms()
        if self.codec != SAME:
            object.__setattr__(self, "codec", checked_codec(self.codec))
        if self.metadata is not None:
            object.__setattr__(self, "metadata", checked_metadata(self.metadata))
        if self.on_error not in ("raise", "skip"):
            raise ConfigurationError(f'on_error must be "raise" or "skip", not {self.on_error!r:.100}')
        if self.engine is not None:
            self._check_engine()
        if self.part_bytes is not None and (type(self.part_bytes) is not int or self.part_bytes < 1):
            raise ConfigurationError(
                f"part_bytes must be a positive number of bytes, not {self.part_bytes!r}"
            )

    @property
    def is_skipping(self) -> bool:
        """Whether records that can't be read are left out."""
        return self.on_error == "skip"

    def forms(self, like: Any = None) -> Forms:
        """Return what is said about the values of records; `like` is the structure of records before them."""
        forms = forms_of(self.json, self.missing, like, allow_pickle=self.allow_pickle, spec=self.spec)
        return replace(forms, continues=like is not None)

    def _check_engine(self) -> None:
        if self.workers > 1:
            raise ConfigurationError("an engine has its own workers: leave out workers, or engine")
        if self.engine not in ENGINES and not callable(getattr(self.engine, "submit", None)):
            raise ConfigurationError(
                'engine must be "ray", or an executor as those of concurrent.futures, not '
                f"{self.engine!r:.100}"
            )
