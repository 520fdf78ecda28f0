"""Settings for all tests: which files an environment runs, and how hypothesis searches."""

import ast
import functools
import importlib.util
import re
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DAY_S = 86_400

try:
    import hypothesis
except ModuleNotFoundError:  # the environment `bare`
    pass
else:
    # The same examples in every run, so that a failure is the change's and not the dice's; machines of
    # strangers are slow, hence no deadline. To search further: pytest --hypothesis-profile=thorough
    hypothesis.settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
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
    from yogadl.storage._folder import Folder

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
        help="leave out test files that import a package which is not installed",
    )
    parser.addoption(
        "--forgeries",
        type=int,
        default=30,
        help="how many forged caches of each kind the tests of tests/faults/test_foreign_fuzz.py try",
    )
    parser.addoption("--forgery-seed", default="1", help="which ones")
    parser.addoption(
        "--worker-chains",
        type=int,
        default=50,
        help="how many chains of stops, kills and resumes tests/faults/test_killed_prefetch.py tries",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Where all frameworks are in one process, JAX warns of every fork of another one's workers.
    config.addinivalue_line("filterwarnings", r"ignore:os\.fork\(\) was called:RuntimeWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.is_dir() or (config.getoption("--bare") and collection_path.suffix == ".py"):
        return bool(missing_packages(collection_path)) or None
    return None  # the other rules decide


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.getoption("--bare"):
        return []
    found = [path.relative_to(TESTS) for path in (*TESTS.rglob("with_*"), *TESTS.rglob("test_*.py"))]
    return [
        f"left out: {path} (needs {', '.join(sorted(missing_packages(TESTS / path)))})"
        for path in sorted(found)
        if missing_packages(TESTS / path) and not any(map(package_of, path.parents))
    ]


def missing_packages(path: Path) -> set[str]:
    """Name the packages that are not installed, of those that a folder is for or a test file imports."""
    needed = imported_by(path) if path.is_file() else {package_of(path)} - {None}
    return {name for name in needed if importlib.util.find_spec(name) is None}


def package_of(folder: Path) -> str | None:
    """Name the package that all tests of a folder need, `torch` of `with_torch`.

    No folder has a package's own name: pytest makes those below it importable, as that package.
    """
    return folder.name.removeprefix("with_") if folder.name.startswith("with_") else None


def imported_by(path: Path) -> set[str]:
    """Name the packages that a test file imports at its top level."""
    imported = set()
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.Import):
            imported |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            imported.add(statement.module)
    return {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - helpers()


@functools.cache
def helpers() -> set[str]:
    """Name the modules that tests share."""
    return {file.stem for file in TESTS.rglob("*.py")}
