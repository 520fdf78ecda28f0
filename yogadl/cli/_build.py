"""Build versions from functions, and from earlier versions."""

import argparse
import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from yogadl._core.forms import Forms, forms_of
from yogadl._core.key import AUTO, DatasetKey, new_key
from yogadl._core.progress import Progress, ProgressDisplay, Tally, showing_progress
from yogadl._format.codec import SAME, Codec, FieldCodec, Zstd
from yogadl._format.manifest import ADOPTED, Manifest, checked_metadata
from yogadl._provenance.builder import Call, Describer
from yogadl._sources.sources import Source, open_source
from yogadl.cli._arguments import (
    KEY,
    MATERIALIZE,
    WORKERS,
    Answer,
    ArgumentGroup,
    command,
    declared,
    open_existing,
    open_or_make,
    parse_size,
    typed,
)
from yogadl.cli._list import Adopted, adopted_of, fingerprint_line, info_to_json
from yogadl.cli._output import ago, contents, counted, duration, note, size
from yogadl.cli._target import Target, check_arguments, errors_in_one_line, load, parse_argument, parse_fill
from yogadl.errors import ConfigurationError
from yogadl.storage import CacheStorage, DatasetInfo
from yogadl.storage._builds.building import begin_build, build_version
from yogadl.storage._builds.executors import counts_of
from yogadl.storage._builds.growth import append as grow
from yogadl.storage._builds.growth import warn_if_other_base
from yogadl.storage._builds.options import BuildOptions, RecordOptions, terms_of
from yogadl.storage._builds.partitions import Partitions
from yogadl.storage._hits.cacheable import warn_if_stale


def parse_codec(text: str) -> tuple[str | None, FieldCodec]:
    """Return the field, if one is named, and the codec in an argument such as ``text=zstd:9``."""
    name, is_named, codec = text.rpartition("=")
    kind, _, level = codec.partition(":")
    found: FieldCodec = None if codec == "none" else codec
    if kind == "zstd" and level:
        try:
            found = Zstd(int(level))
        except ValueError as error:  # a ConfigurationError is one, too
            raise argparse.ArgumentTypeError(f"{level!r} is not a level of zstd, from 1 to 22") from error
    elif codec not in ("zstd", "auto", "none") and text != SAME:
        raise argparse.ArgumentTypeError(f"{codec!r} is not zstd, zstd:LEVEL, auto or none")
    return name if is_named else None, found


@dataclass(frozen=True)
class Task:
    """The number of a task, and the number of tasks.

    Args:
        number: The task's number, from 1.
        count: The number of tasks.
    """

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> "Task":
        """Return the task in a text such as ``3/100``."""
        found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
        number, count = map(int, found.groups()) if found else (0, 0)
        if not 1 <= number <= count:
            raise argparse.ArgumentTypeError(
                f"give a task and how many there are, counted from 1, as in 3/100, not {text!r}"
            )
        return Task(number, count)

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


TARGET: Final = declared(
    """
    target=FILE.py:FUNCTION  the file, and the function in it that returns the records; or a folder or URL
        of pictures
    """,
    target=typed(Target.parse),
)
METADATA: Final = declared(
    "--metadata NAME=VALUE...  keep this value, JSON or text, with the version",
    metadata=typed(parse_argument),
)
CODEC: Final = declared(
    """
    --codec [FIELD=]CODEC...  compress values: zstd, zstd:LEVEL, auto (where it pays), none, or same as the
        version before; of all fields, or of one
    """,
    codec=typed(parse_codec),
)
REPLACE_NEW: Final = declared("--replace  replace NEW if it is another version")
# The options that `build` and `append` share.
OPTIONS: Final = (
    *METADATA,
    *WORKERS,
    *CODEC,
    *declared(
        """
        --arg NAME=VALUE...  call the function with this argument
        --replace  build again and replace the version if it exists
        --part-bytes SIZE  the largest size of a file, e.g. 256MB or 1GiB
        --on-error {raise,skip}  skip: leave out records that can't be read, and list them in the version's
            metadata
        --missing FIELD=VALUE...  what comes in the place of None, or of a key that a record lacks: label=-1,
            x=nan, text=empty
        --json-value FIELD...  this field is any tree of dicts, lists, text and numbers, stored as JSON
        --allow-pickle  pickle objects that have no other stored form
        --no-space-check  build even if the disk is too small for the records as they are (it may compress
            them)
        --traceback  show the whole traceback of an error in the function
        """,
        arg=typed(parse_argument, []),
        part_bytes=typed(parse_size),
        on_error={"default": "raise"},
        missing=typed(parse_fill) | {"dest": "fill"},
        json_value={"default": []},
    ),
)
TASKS: Final = ArgumentGroup(
    "builds by many tasks, such as those of a job array",
    (
        ArgumentGroup(
            "",
            declared(
                """
                --task K/N  write only the share of task K of N; the first task is 1
                --commit  publish the version, after all tasks have written their shares
                """,
                task=typed(Task.parse),
            ),
        ),
        *declared(
            """
            --run NAME  a name that all tasks of a build share, e.g. the job's id; needed for --replace
            """,
            run={"dest": "run_name"},
        ),
    ),
)


@command(*TARGET, *KEY, *OPTIONS, TASKS, has_bar=True)
def build(arguments: argparse.Namespace) -> Answer:
    """Build a version from a function in a Python file.

    The function yields the records or returns them as an iterable, as arrays, or as an object with __len__
    and __getitem__. If the version exists already, nothing is built. A warning appears if other code or
    arguments built it. --replace builds it again; programs that read the old version keep reading it.

    If VERSION is auto, the version's name is made from the code and the arguments: a change of either
    builds a new version. The value of --arg is read as JSON, and as a string if it is no JSON: count=1000,
    split=train, sizes='[32, 64]', year='"2024"'. The function's own output goes to stderr.

    Many tasks, such as those of a job array, can build one version together. Each task runs with --task
    K/N. Tasks run in any order, and a task can be repeated. When all tasks are done, one call with --commit
    publishes the version. For this the function returns a source with random access, or a partitioned
    source (yogadl.partitioned).

    A folder of pictures, in one folder for each class, needs no function: its path or URL is given instead,
    and --arg gives the options of yogadl.image_folder.

    Example:
      yogadl build data.py:squares squares 1 --arg count=1000 -s /data/caches
      yogadl build photos photos 1 --workers 8 --on-error skip -s /data/caches
      yogadl build data.py:squares squares 1 --task 3/100 -s /data/caches
    """
    is_task = check_options(arguments)
    return build_from_function(arguments, open_or_make(arguments), run_task if is_task else _build)


@dataclass(frozen=True)
class WrittenPartitions:
    """The partitions that a task has written, or has found written already."""

    id: str
    version: str
    run: str
    task: int
    tasks: int
    partitions: int
    written: int
    records: int

    def __str__(self) -> str:
        what = f"{self.written} of {counted(self.partitions, 'partition')}, {counted(self.records, 'record')}"
        return f"Task {self.task} of {self.tasks} has written {what}, of {self.id} {self.version}."


@dataclass(frozen=True)
class Work:
    """A version that is to be built from a function.

    Args:
        storage: The storage that gets it.
        key: Its dataset and version.
        function: The function.
        values: Its arguments.
        call: The description of this call, which is kept with the version.
        arguments: The command's arguments.
    """

    storage: CacheStorage
    key: DatasetKey
    function: Callable[..., Any]
    values: dict[str, Any]
    call: Call
    arguments: argparse.Namespace

    def source(self) -> Any:
        """Call the function."""
        return self.function(**self.values)


def build_from_function(
    arguments: argparse.Namespace,
    storage: CacheStorage,
    build: Callable[[Work], bool | WrittenPartitions],
) -> Answer:
    """Build a version from the function that the arguments name.

    Args:
        arguments: The command's arguments.
        storage: The storage that gets the version.
        build: Returns whether this call built the version, or what a task has written.
    """
    # Both refuse a wrong combination before anything is loaded.
    codec_of(arguments)
    _forms_of(arguments)
    target: Target = arguments.target
    values = dict(arguments.arg) | ({"location": target.folder} if target.folder else {})
    started = time.perf_counter()
    with (
        contextlib.redirect_stdout(sys.stderr),
        show_log_messages(),
        errors_in_one_line(target.path.absolute(), arguments.traceback),
    ):
        function = load(target)
        check_arguments(target, function, values)
        is_auto = arguments.version == AUTO
        if is_auto and target.folder:
            raise ConfigurationError("auto is made of code and arguments, not of files: name the version")
        call = Describer(function, thorough=is_auto).call((), values)
        key = DatasetKey(arguments.id, call.builder.version if is_auto else arguments.version)
        result = build(Work(storage, key, function, values, call, arguments))
    return answer_of(storage, key, result, time.perf_counter() - started, arguments)


def answer_of(
    storage: CacheStorage,
    key: DatasetKey,
    result: bool | WrittenPartitions,
    elapsed_s: float,
    arguments: argparse.Namespace,
) -> Answer:
    """Return what is printed about a build: `result` is whether it built, or what a task has written."""
    if isinstance(result, WrittenPartitions):
        return Answer(asdict(result), [str(result)])
    info = storage.info(key.id, key.version)
    adopted = adopted_of(storage, info)
    document = info_to_json(storage, info, {"was_built": result, "elapsed_s": elapsed_s})
    document |= {"adopted": adopted and asdict(adopted)}
    return Answer(document, _result_lines(info, adopted, result, elapsed_s, arguments))


def _result_lines(
    info: DatasetInfo,
    adopted: Adopted | None,
    was_built: bool,
    elapsed_s: float,
    arguments: argparse.Namespace,
) -> Iterator[str]:
    if was_built:
        yield f"Built {info.id} {info.version} in {duration(elapsed_s)}: {contents(info)}."
    else:
        yield f"{info.id} {info.version} is there already, built {ago(info.created)}: {contents(info)}."
        if arguments.replace and arguments.run_name is not None:
            run = f"it is what the run {arguments.run_name} has built"
            note(f"{run}; --replace with another --run builds it again")
        else:
            note("nothing was built; --replace builds it again")
    if adopted is not None:
        yield f"Its values stay in {adopted}, which were {'' if adopted.is_read else 'not '}read through."
    elif was_built and ADOPTED in info.builder:
        yield "All its values are small, so they were copied: it needs no other file."
    yield fingerprint_line(info, adopted)


def options_of(arguments: argparse.Namespace, progress: Progress | None = None) -> dict[str, Any]:
    """Return the build options of the command line, by the names of the library's arguments."""
    return {
        "workers": arguments.workers,
        "build": BuildOptions(
            part_bytes=arguments.part_bytes,
            progress=progress,
            check_space=not arguments.no_space_check,
            metadata=arguments.metadata and dict(arguments.metadata),
        ),
        "records": RecordOptions(on_error=arguments.on_error, allow_pickle=arguments.allow_pickle),
        "json": arguments.json_value,
        "missing": named_once(arguments, arguments.fill),
        **({} if arguments.codec is None else {"codec": codec_of(arguments)}),
    }


def named_once(
    arguments: argparse.Namespace,
    given: Sequence[tuple[str, Any]] | None,
    what: str = "--missing names a field",
) -> dict[str, Any] | None:
    """Return the values that an option gives to names, after refusing a name that it has twice."""
    if given is not None and len(dict(given)) != len(given):
        arguments.refuse(f"{what} twice")
    return None if given is None else dict(given)


def _forms_of(arguments: argparse.Namespace) -> Forms:
    """Return what the command says of the values of records."""
    fills = named_once(arguments, arguments.fill)
    return forms_of(arguments.json_value, fills, allow_pickle=arguments.allow_pickle)


def codec_of(arguments: argparse.Namespace) -> Codec:
    """Return the codec of the command line; without `--codec`, none."""
    given = arguments.codec or []
    alone = [codec for name, codec in given if name is None]
    if alone and len(given) > 1:
        arguments.refuse("--codec is given once for all fields, or with FIELD= for each")
    return alone[0] if alone else dict(given) or None


def _build(work: Work) -> bool:
    """Return whether this call built the version; False if the version exists already."""
    arguments, storage, is_new = work.arguments, work.storage, bool(work.arguments.replace)
    with showing_progress(None, f"building {work.key}") as show:

        def progress(records: int, total: int | None, size_bytes: int) -> None:
            nonlocal is_new
            is_new = True
            if show is not None:
                show(records, total, size_bytes)

        if isinstance(show, ProgressDisplay):
            progress.set_partitions = show.set_partitions  # type: ignore[attr-defined]
        options = options_of(arguments, progress)
        if arguments.replace:
            build_version(storage._backend, work.key, work.source, terms_of(**options), work.call)
        else:
            storage.cacheable(arguments.id, arguments.version, **options)(work.function)(**work.values)
    return is_new


@contextlib.contextmanager
def show_log_messages() -> Iterator[None]:
    """Show the library's log messages, such as where a build continues and how large it will be."""
    logger = logging.getLogger("yogadl")
    handler, level = _Handler(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


class _Handler(logging.Handler):
    """Print log messages on stderr without their prefix "yogadl: ", which `note` prints itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message, without breaking the progress bar."""
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            note(record.getMessage().removeprefix("yogadl: "))


@command(
    *TARGET,
    *KEY,
    *declared("BASE  the version whose records come first, or a tag of it"),
    *OPTIONS,
    defaults={"run_name": None},
    has_bar=True,
)
def append(arguments: argparse.Namespace) -> Answer:
    """Build a version from an earlier version and new records.

    The new version has all records of BASE, followed by those that the function returns. Only the new
    records are read and written: the files of BASE become files of the new version, too. If the version
    exists already, nothing is built. A warning appears if other code or arguments built the version, or if
    the version does not continue BASE. --replace builds it again. All options are as for `yogadl build`.

    Example:
      yogadl append data.py:squares squares 2 1 --arg first=1000 -s /data/caches
    """
    # Refuses `auto`: a name made from code and arguments would not depend on the base.
    new_key(arguments.id, arguments.version)
    return build_from_function(arguments, open_existing(arguments), _append)


def _append(work: Work) -> bool:
    """Return whether this call built the version; False if the version exists already."""
    backend, base = work.storage._backend, DatasetKey(work.key.id, work.arguments.base)
    options = terms_of(**{"codec": SAME, **options_of(work.arguments)})
    published = backend.catalogue.find(work.key)
    if published is not None and work.key != base and not work.arguments.replace:
        warn_if_stale(published.manifest, work.call.builder.to_json(), set())
        warn_if_other_base(backend.catalogue, published.manifest, base)
        return False
    grow(backend, work.key, work.source, base, options, work.call)
    return True


@command(
    *KEY,
    *declared("NEW  the version to build"),
    *CODEC,
    *MATERIALIZE,
    *REPLACE_NEW,
    *WORKERS,
    has_bar=True,
)
def recompress(arguments: argparse.Namespace) -> Answer:
    """Build a version with the records of another, compressed or not.

    The fingerprint is the same, so cursors stay valid. If NEW is VERSION, the version is replaced; another
    version that exists is replaced only with --replace. Values in foreign files stay there, and can't be
    compressed, unless --materialize copies them.

    Example:
      yogadl recompress squares 1 2 --codec zstd -s /data/caches
    """
    if arguments.codec is None:
        arguments.refuse("say how: --codec zstd, auto or none, or FIELD=CODEC")
    storage, codec = open_existing(arguments), codec_of(arguments)
    before = storage.info(arguments.id, arguments.version)
    refuse_to_replace(storage, before, arguments)
    storage.recompress(
        arguments.id,
        arguments.version,
        arguments.new,
        codec=codec,
        workers=arguments.workers,
        materialize=arguments.materialize,
    )
    info = storage.info(arguments.id, arguments.new)
    text = f"Built {info.id} {info.version}: {contents(info)}, from {size(before.size_bytes)}."
    return Answer(info_to_json(storage, info), [text])


def refuse_to_replace(storage: CacheStorage, before: DatasetInfo, arguments: argparse.Namespace) -> None:
    """Refuse to build NEW if it is another version than VERSION and exists, unless --replace is given."""
    key = DatasetKey(arguments.id, arguments.new)
    is_other = key.version != before.version
    if is_other and not arguments.replace and storage._backend.catalogue.find(key) is not None:
        raise ConfigurationError(f"{key} exists: give NEW another name, or replace it with --replace")


def check_options(arguments: argparse.Namespace) -> bool:
    """Return whether the options are those of a task, after refusing invalid combinations."""
    is_task = arguments.task is not None or arguments.commit
    if codec_of(arguments) == SAME:
        arguments.refuse("--codec same is for versions that come from another: append and recompress")
    if arguments.run_name is not None and not is_task:
        arguments.refuse("--run goes with --task or --commit")
    if is_task and arguments.workers > 1:
        arguments.refuse("a task reads in one process: leave out --workers, and start more tasks")
    if is_task and arguments.on_error != "raise":
        arguments.refuse("--on-error skip is for a build in one call: leave out --task and --commit")
    if is_task and arguments.replace and arguments.run_name is None:
        # Without a run's name, a task that is repeated after the commit would start a new build.
        arguments.refuse(
            "--replace by tasks needs --run with the same name for all tasks, such as the job's id"
        )
    return is_task


def run_task(work: Work) -> bool | WrittenPartitions:
    """Write the partitions of one task, or publish the version from the partitions of all tasks.

    Returns:
        Whether this call published the version; or the partitions that the task has written.
    """
    shared = SharedWork(
        lambda: open_source(work.source(), _forms_of(work.arguments)),
        lambda built: warn_if_stale(built, work.call.builder.to_json(), set()),
        work.call.sha256,
        work.call.manifest,
    )
    return run_share(work.storage, work.key, shared, work.arguments)


@dataclass(frozen=True)
class SharedWork:
    """The data that all tasks of a build share.

    Args:
        open: Returns the source of all records.
        warn: Warns if a version that exists was built from another source.
        origin: Returns the hash of the code and values that the source is made from; empty if unknown.
        describe: Returns what the manifest says of the builder, beside the provenance of the source.
    """

    open: Callable[[], Source]
    warn: Callable[[Manifest], None]
    origin: Callable[[], str] = str
    describe: Callable[[], dict[str, Any]] = dict


def run_share(
    storage: CacheStorage, key: DatasetKey, work: SharedWork, arguments: argparse.Namespace
) -> bool | WrittenPartitions:
    """Write or publish as `run_task` does, from any source."""
    new_key(key.id, key.version)
    if not arguments.replace:
        published = storage._backend.catalogue.find(key)
        if published is not None:
            work.warn(published.manifest)
            return False
    origin = _forms_of(arguments).decide(work.origin())
    data = work.open()  # the source knows the statements about its records
    build = begin_build(
        storage._backend,
        key,
        None,
        arguments.run_name,
        data,
        forms=Forms(allow_pickle=arguments.allow_pickle),
        origin=origin,
        codec=codec_of(arguments),
    )
    if build._all.is_published():  # an earlier commit of this run has published the version
        work.warn(storage._backend.catalogue.published(key).manifest)
        return False
    if arguments.commit:
        builder = getattr(data, "provenance", {}) | work.describe()
        checked = None if arguments.metadata is None else checked_metadata(dict(arguments.metadata))
        return build._all.commit(builder, replaces=arguments.replace, metadata=checked)
    return _write(build._all, arguments)


def _write(build: Partitions, arguments: argparse.Namespace) -> WrittenPartitions:
    """Write every N-th partition, so that a long stretch of slow partitions is spread over all tasks."""
    task: Task = arguments.task
    others = build.others()
    if others:
        note(f"other tasks of {build.key} have other code, arguments or source, or another run: {others}")
    own_partitions = range(task.number - 1, build.count, task.count)
    part_bytes = arguments.part_bytes or build.backend.part_bytes
    records = 0
    title = f"{build.key}, task {task}"
    build.note_tasks(task.count)
    with showing_progress(None, title) as show:
        tally = Tally(title, len(own_partitions), None, show, None, note)
        for partition in own_partitions:
            written = counts_of(build.write_share(partition, part_bytes))
            tally.note(partition, *written, is_whole=True)
            tally.report_total()
            records += written.records
    return WrittenPartitions(
        build.key.id,
        build.key.version,
        build.run,
        task.number,
        task.count,
        build.count,
        len(own_partitions),
        records,
    )
