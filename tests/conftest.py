"""Settings for all tests: which files an environment runs, and how hypothesis searches."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

# Files that only one tox environment runs, and the package that it has and the others lack.
OPTIONAL = {
    "test_docs.py": "sybil",
    "adapters/test_arrays.py": "datasets",
    "adapters/test_arrow_sizes.py": "pyarrow",
    "adapters/test_export_arrow.py": "pyarrow",
    "adapters/test_grain_cursor.py": "grain",
    "adapters/test_grain_dataset.py": "grain",
    "adapters/test_grain_docs.py": "grain",
    "adapters/test_grain_loader.py": "grain",
    "adapters/test_grain_orbax.py": "grain",
    "adapters/test_grain_processes.py": "grain",
    "adapters/test_grain_resume.py": "grain",
    "adapters/test_grain_sizes.py": "grain",
    "adapters/test_grain_source.py": "grain",
    "adapters/test_grain_turns.py": "grain",
    "adapters/test_grain_workers.py": "grain",
    "adapters/test_jax.py": "jax",
    "adapters/test_jax_docs.py": "jax",
    "adapters/test_jax_loadax.py": "loadax",
    "adapters/test_jax_processes.py": "jax",
    "adapters/test_keras_dataset.py": "keras",
    "adapters/test_keras_docs.py": "keras",
    "adapters/test_keras_source.py": "keras",
    "adapters/test_keras_training.py": "keras",
    "adapters/test_tensorflow.py": "tensorflow",
    "adapters/test_tensorflow_build.py": "tensorflow",
    "adapters/test_tensorflow_cache.py": "tensorflow",
    "adapters/test_tensorflow_docs.py": "tensorflow",
    "adapters/test_tensorflow_keras.py": "tensorflow",
    "adapters/test_tensorflow_resume.py": "tensorflow",
    "adapters/test_tensorflow_sizes.py": "tensorflow",
    "adapters/test_tensorflow_source.py": "tensorflow",
    "adapters/test_tensorflow_stages.py": "tensorflow",
    "adapters/test_tfds.py": "tensorflow_datasets",
    "adapters/test_torch_dataset.py": "torch",
    "adapters/test_torch_docs.py": "lightning",
    "adapters/test_torch_iterable.py": "torchdata",
    "adapters/test_torch_loader.py": "torch",
    "adapters/test_torch_resume.py": "lightning",
    "adapters/test_torch_sampler.py": "torchdata",
    "adapters/test_torch_shards.py": "torch",
    "adapters/test_torch_sizes.py": "torch",
    "adapters/test_torch_source.py": "torch",
    "adapters/test_torch_trainers.py": "lightning",
}

TESTS = Path(__file__).parent
collect_ignore = [file for file, package in OPTIONAL.items() if importlib.util.find_spec(package) is None]

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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--bare") and collection_path.suffix == ".py" and missing_packages(collection_path):
        return True
    return None  # the other rules decide


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.getoption("--bare"):
        return []
    left_out = {path: missing_packages(path) for path in sorted(TESTS.rglob("test_*.py"))}
    return [
        f"left out: {path.relative_to(TESTS)} (needs {', '.join(sorted(packages))})"
        for path, packages in left_out.items()
        if packages
    ]


def missing_packages(path: Path) -> set[str]:
    """Name the packages that a test file imports at its top level and that are not installed."""
    imported = set()
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.Import):
            imported |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            imported.add(statement.module)
    roots = {name.partition(".")[0] for name in imported} - sys.stdlib_module_names
    helpers = {file.stem for file in path.parent.glob("*.py")} | {file.stem for file in TESTS.glob("*.py")}
    return {root for root in roots - helpers - {"tests"} if importlib.util.find_spec(root) is None}
