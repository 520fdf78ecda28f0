"""The repository's promises to a stranger with a clone: versions, commands, what is shipped."""

import configparser
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def tox():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", "utf-8")
    return parser


def test_lowest_installs_exactly_the_lower_bounds(project, tox):
    pins = tox["testenv:lowest"]["deps"].split()
    assert sorted(pins) == sorted(dependency.replace(">=", "==") for dependency in project["dependencies"])


def test_all_names_every_extra_that_users_have(project):
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    named = re.fullmatch(r"yogadl\[(.*)\]", everything)[1].split(",")
    assert sorted(named) == sorted(extras.keys() - {"all", "tf", "test", "docs"})


def test_ci_runs_the_second_command_of_the_readme():
    commands = re.findall(r"```(?:sh|bash)\n(.*)\n```", (ROOT / "README.md").read_text("utf-8"))
    demo, suite = (line for line in commands if line.startswith("python3 -m pip install"))
    assert demo.endswith("yogadl demo")
    assert suite in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()


def test_the_version_is_the_newest_of_the_changelog(project):
    import yogadl

    version = (ROOT / "yogadl" / "VERSION").read_text("utf-8").strip()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == version
    assert yogadl.__version__ == version


def mapped() -> dict[str, set[str]]:
    """Return what the map in CONTRIBUTING.md names, of each folder of the repository."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named: dict[str, set[str]] = {"": set()}
    folder = ""
    for line in re.search(r"^yogadl/\n(?:.*\n)*?(?=```)", text, re.MULTILINE)[0].splitlines():
        indent, names = re.match(r"( *)(\S+(?: \S+)*)", line).groups()
        if not indent:
            folder = names.split()[0].rstrip("/")
            named[""].add(folder)
            named[folder] = set()
        elif len(indent) == 2:
            named[folder] |= {name.rstrip("/") for name in names.split()}
    return named


def entries(folder: Path) -> set[str]:
    """Name a folder's modules and the folders in it that have files."""
    folders = {path.parent.name for path in folder.glob("[!._]*/*") if path.is_file()}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return folders | packages | {path.name for path in folder.glob("*.py")}


def test_the_map_names_each_module_and_no_other():
    assert mapped()["yogadl"] == entries(ROOT / "yogadl")


def test_the_map_names_each_folder_of_tests():
    assert mapped()["tests"] == {
        "with_<package>" if name.startswith("with_") else name
        for name in entries(ROOT / "tests")
        if not name.endswith(".py")
    }


def test_what_contributing_names_is_there():
    folders = [ROOT / name for name in mapped()[""]]
    there = [path.as_posix() for folder in folders for path in (folder, *folder.rglob("*"))]
    there += [path.as_posix() for path in ROOT.glob("*.*")]
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = {name for name in re.findall(r"`([\w./-]+)`", text) if name.endswith((".py", ".md", "/"))}
    assert named
    lost = {name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in there)}
    assert lost == set()
