"""Settings for all tests: which files an environment runs, and how hypothesis searches."""

import functools
import gc
import importlib.util
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import hangs
import pytest
import soak

TESTS = Path(__file__).parent
DAY_S = 86_400
MEMORY_BYTES = 2**33  # far more than the temporary files of a run, a quarter of which are there at once

# Folders and files that `--fast` leaves out: processes, kills, buckets, frameworks, and large matrices.
SLOW = {
    TESTS / name
    for name in (
        "adapters", "compare", "examples", "faults", "provenance", "together", "with_sybil",
        "cli/test_cli_growth.py", "cli/test_cli_tasks.py", "cli/test_cli_terminal.py", "cli/test_report.py",
        "format/test_format_checks.py", "format/test_format_sizes.py",
        "storage/test_lease.py", "storage/test_storage_afar.py", "storage/test_storage_blocks.py",
        "storage/test_storage_cacheable.py", "storage/test_storage_checked_ranges.py",
        "storage/test_storage_checks.py", "storage/test_storage_contract.py",
        "storage/test_storage_growth.py", "storage/test_storage_many_parts.py",
        "storage/test_storage_partitioned.py", "storage/test_storage_partitions.py",
        "storage/test_storage_parts.py", "storage/test_storage_plan.py", "storage/test_storage_resuming.py",
        "storage/test_storage_shares.py",
        "stream/test_stream_chains.py", "stream/test_stream_prefetch.py", "stream/test_stream_workers.py",
        "stream/test_stream_worker_memory.py",
        "test_concat.py", "test_filter.py", "test_import.py", "test_packaging.py", "test_shuffle_quality.py",
    )
}  # fmt: skip

try:
    import hypothesis
except ModuleNotFoundError:  # the environment `bare`
    pass
else:
    # The same examples in every run, so that a failure is the change's and not the dice's; machines of
    # strangers are slow, hence no deadline. To search further: pytest --soak
    hypothesis.settings.register_profile(
        "same", max_examples=25, derandomize=True, deadline=None, print_blob=True
    )
    hypothesis.settings.register_profile("thorough", max_examples=2_000, deadline=None, print_blob=True)
    hypothesis.settings.load_profile("same")


@pytest.fixture
def storage(tmp_path):
    """Return an empty storage of the test's own."""
    import yogadl

    return yogadl.open_storage(tmp_path / "caches")


@pytest.fixture
def days_go_by(monkeypatch):
    """Let days go by: nobody can set back both times of a file, so the clock goes on."""
    from inside import Folder

    gone = []

    def go(days):
        gone.append(days)
        monkeypatch.setattr(Folder, "now", lambda _: time.time() + sum(gone) * DAY_S)

    return go


@pytest.fixture
def yoga(capsys):
    """Run the command, and return its exit code and what it printed."""
    from command import run_command

    return functools.partial(run_command, capsys)


@pytest.fixture
def forked_workers(monkeypatch):
    """Let the workers of builds and filters be forks of this process: real ones, that import nothing first.

    A server of workers takes half a second of processor time to import what they need. Other cases or tests
    of the same file do without this, so that starting empty is tried, too.
    """
    from inside import Workers, processes

    monkeypatch.setattr(processes, "Workers", lambda work, _method, _preload: Workers(work, "fork"))


@pytest.fixture(scope="session")
def stranger():
    """Return the functions of the program that the page on the order has, as a stranger would write them."""
    page = TESTS.parent / "docs" / "explanation" / "order.md"
    (source,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(compile(source, "docs/explanation/order.md", "exec"), names)
    return names


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bare",
        action="store_true",
        help="see to it that no optional package is installed",
    )
    parser.addoption("--fast", action="store_true", help="leave out the files whose tests take long")
    parser.addoption(
        "--soak",
        action="store_true",
        help="try much more where a test has a long form: chains, kills, forgeries, examples of hypothesis",
    )
    parser.addoption(
        "--forgeries",
        type=int,
        help="how many forged caches of each kind the tests of tests/faults/test_foreign_fuzz.py try",
    )
    parser.addoption("--forgery-seed", default="1", help="which ones")


def pytest_configure(config: pytest.Config) -> None:
    assert not [path for path in SLOW if not path.exists()]
    if "TMPDIR" not in os.environ:  # as it is in the processes of pytest-xdist
        config.add_cleanup(functools.partial(shutil.rmtree, own_temporary_folder(), ignore_errors=True))
    if config.getoption("--soak"):  # a test may take half an hour
        soak.set_long(True)
        hypothesis.settings.load_profile("thorough")
    else:
        hangs.end_what_hangs(config)


def own_temporary_folder() -> str:
    """Make a folder for all temporary files of this run, in memory if there is room and programs run there.

    It is the run's own, because pytest tidies up what other runs have left in theirs.
    """
    memory = "/dev/shm"
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= MEMORY_BYTES
    is_used = has_room and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    folder = tempfile.mkdtemp(prefix="yogadl-", dir=memory if is_used else None)
    os.chmod(folder, 0o755)  # for the tests of other users
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    return folder


def pytest_collection_finish() -> None:
    """Let later collections of garbage pass over the tests and modules, which stay."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a folder for a package that is not installed, `with_torch`; or a slow file, if asked.

    No folder has a package's own name: pytest makes those below it importable, as that package.
    """
    package = collection_path.name.removeprefix("with_")
    is_missing = package != collection_path.name and importlib.util.find_spec(package) is None
    is_missing |= config.getoption("--fast") and collection_path in SLOW
    return is_missing or None  # the other rules decide
