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
