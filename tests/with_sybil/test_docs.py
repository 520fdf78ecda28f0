"""Every Python example of the README, of docs/ and of docstrings runs, in an empty folder of its own."""

import configparser
import re
import tomllib
from pathlib import Path
from unittest import SkipTest

import pytest
from pages import ROOT
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.parsers.rest import PythonCodeBlockParser as DocstringCodeBlockParser

import yogadl

PACKAGE = Path(yogadl.__file__).parent

SKIPPER = SkipParser()
PAGES = Sybil(parsers=[PythonCodeBlockParser(), SKIPPER], path=str(ROOT))
DOCSTRINGS = Sybil(
    parsers=[DocTestParser(), DocstringCodeBlockParser()],
    path=str(PACKAGE),
    document_types={".py": PythonDocStringDocument},
)


def pages():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def modules():
    """The core's modules: an adapter's examples run in its own environment."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "adapters" not in path.parts]


def run_all(sybil, path):
    """Run the examples of a file; return how many ran. Some may say that they can't run here, and why."""
    ran, reasons = 0, []
    for example in sybil.parse(path).examples():
        try:
            example.evaluate()
            ran += example.region.evaluator is not SKIPPER.skipper
        except SkipTest as skipped:
            reasons.append(str(skipped))
    if reasons and not ran:
        pytest.skip(reasons[0])
    return ran


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_page_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOGADL_CACHE", str(tmp_path / "of the user"))
    run_all(PAGES, path)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_examples_of_docstrings_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOGADL_CACHE", str(tmp_path / "of the user"))
    run_all(DOCSTRINGS, path)


def test_the_readme_has_an_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOGADL_CACHE", str(tmp_path / "of the user"))
    assert run_all(PAGES, ROOT / "README.md") > 0


# An example that does not run here says why, and where it does. What no environment runs is no example. So
# many are skipped where no framework is installed: a number grows by hand, and by a decision.
SKIPPED = {
    "README.md": 5,
    "docs/howto/beam-spark.md": 4,
    "docs/howto/export.md": 1,
    "docs/howto/gcs.md": 1,
    "docs/howto/grain.md": 12,
    "docs/howto/huggingface.md": 2,
    "docs/howto/images.md": 6,
    "docs/howto/jax.md": 7,
    "docs/howto/keras.md": 11,
    "docs/howto/length-buckets.md": 2,
    "docs/howto/migrating.md": 5,
    "docs/howto/parquet.md": 1,
    "docs/howto/packing.md": 4,
    "docs/howto/preemption.md": 5,
    "docs/howto/pytorch.md": 12,
    "docs/howto/ray.md": 5,
    "docs/howto/s3.md": 1,
    "docs/howto/shards.md": 2,
    "docs/howto/sources.md": 7,
    "docs/howto/tensorflow.md": 12,
    "docs/stories/images.md": 9,
    "docs/stories/chats.md": 7,
    "docs/stories/language_model.md": 11,
    "docs/stories/many_tasks.md": 3,
    "docs/stories/robots.md": 6,
    "docs/howto/torchtitan.md": 1,
    "docs/howto/trl-grpo.md": 1,
    "docs/howto/verl.md": 1,
    "docs/howto/axolotl.md": 1,
    "docs/tutorial.md": 1,
}
# PyPI's torchvision needs a torch with CUDA; albumentations looks for newer versions on the internet. Whoever
# changes the examples that need them installs them, and runs `pytest tests/with_sybil -k howto/images`.
BY_HAND = {"torchvision", "albumentations"}
SKIP = re.compile(r"^<!--+ *skip: *(\w+) *(.*?) *--+>|^ *```(python)$", re.M)


def skips(path):
    """Yield, for each example of a page that may be skipped, whether all after it are, too, and why."""
    action, reason = "", ""
    for action_here, reason_here, is_example in SKIP.findall(path.read_text("utf-8")):
        if not is_example:
            action, reason = action_here, reason_here
            assert action in ("next", "start"), f"{path}: {action}"
        elif action:
            yield action, reason
            action = "start" if action == "start" else ""


def name(path):
    return path.relative_to(ROOT).as_posix()


def test_so_many_examples_of_each_page_are_skipped_and_no_more():
    counts = {name(path): len(list(skips(path))) for path in pages()}
    assert {page: count for page, count in counts.items() if count} == SKIPPED


def tox_environment(section):
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", "utf-8")
    return parser[f"testenv:{section}"]


@pytest.mark.parametrize("path", [path for path in pages() if any(skips(path))], ids=name)
def test_each_example_that_is_skipped_runs_in_another_environment(path):
    frameworks = tox_environment("frameworks")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    needed = [need if isinstance(need, str) else need["include-group"] for need in groups["frameworks"]]
    installed = {
        re.split("[<>=[]", need)[0] for need in needed
    }  # an included group is named as its framework
    tests = "".join(test.read_text("utf-8") for test in (ROOT / "tests").rglob("with_*/**/test_*_docs.py"))
    for action, reason in set(skips(path)):
        needs = re.fullmatch(r'if\(.*reason="needs ([\w ,-]+)"\)', reason)
        place = re.fullmatch(r'"runs in (tests/\S+\.py)(, [\w ]+)?"', reason)
        if place:
            assert path.name in (ROOT / place[1]).read_text("utf-8"), reason
        elif path.name == "README.md":  # in the tests of each framework's page
            [library] = re.findall(r'find_spec\("(\w+)"\)', reason)
            framework = {"transformers": "torch"}.get(library, library)
            assert '"../README.md"' in "".join(
                test.read_text("utf-8")
                for test in (ROOT / f"tests/adapters/with_{framework}").glob("*_docs.py")
            )
        elif action == "start":  # the whole page runs in the tests of its framework
            assert needs, reason
            assert f'"{path.relative_to(ROOT / "docs").as_posix()}"' in tests
        else:  # and a table's examples where all libraries for tables are
            assert needs, reason
            assert set(needs[1].split(", ")) <= installed | BY_HAND, reason
            assert path.name in frameworks["commands"]


def test_the_languages_of_the_blocks_are_those_that_the_tests_look_for():
    seen = set()
    for path in pages():
        fences = re.findall(r"^ *(?:```|~~~)(.*)$", path.read_text("utf-8"), re.M)
        of_sphinx = {"{include} ../CHANGELOG.md"} if path.name == "changelog.md" else {"{toctree}"}
        assert set(fences) <= {"", "console", "json", "python", "sh"} | of_sphinx, path
        seen.update(fences)
    assert {"", "console", "json", "python", "sh"} <= seen


def test_pages_in_other_markup_have_no_examples():
    """The reference is: its examples are those of the docstrings."""
    paths = list((ROOT / "docs").rglob("*.rst"))
    assert paths
    for path in paths:
        assert not re.search(r"(?<!toctree)::$|>>>|code", path.read_text("utf-8"), re.M), path
