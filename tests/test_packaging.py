"""The repository's promises to a stranger with a clone: versions, commands, what is shipped."""

import ast
import configparser
import json
import os
import re
import tomllib
from pathlib import Path

import inside
import pytest
from release import promised_pythons

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def groups():
    """Return what each environment of the tests installs beyond the package."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]


@pytest.fixture(scope="module")
def tox():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", "utf-8")
    return parser


def pinned(name):
    """Return the requirements of a lock file, each without what says where it holds."""
    lines = (ROOT / "tests" / name).read_text("utf-8").splitlines()
    return {line.partition(";")[0].strip() for line in lines if not line.lstrip().startswith("#")}


def test_lowest_installs_exactly_the_lower_bounds(project, groups):
    known = [*project["dependencies"], *project["optional-dependencies"]["zstd"]]
    bounds = {dependency.replace(">=", "==") for dependency in known}
    assert set(groups["lowest"]) == bounds
    assert bounds <= pinned("locked-lowest.txt")


def named(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_all_that_an_environment_installs_is_locked(project, groups):
    lines = pinned("locked.txt") | pinned("locked-spark.txt")
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in lines)
    asked = [need for group in groups.values() for need in group if isinstance(need, str)]
    asked += [need for extra in project["optional-dependencies"].values() for need in extra]
    asked += project["dependencies"]
    names = {named(need) for need in asked} - {"yogadl"}
    assert names <= {named(line) for line in lines}
    for need in asked:  # what the groups pin is what is locked
        if re.fullmatch(r"[\w.\[\]-]+==[\w.]+", need) and need not in groups["lowest"]:
            assert re.sub(r"\[.*\]", "", need) in lines


def test_every_environment_installs_what_is_locked(tox):
    assert tox["locked"]["file"].endswith("locked.txt")
    settings = dict(line.split(" = ") for line in tox["locked"]["set_env"].splitlines() if " = " in line)
    for installer in ("PIP", "UV"):
        assert settings[f"{installer}_CONSTRAINT"] == "{[locked]file}"
        assert settings[f"{installer}_BUILD_CONSTRAINT"] == "{[locked]file}"
    for name in tox.sections():
        own = tox[name].get("set_env")
        if name.startswith("testenv") and own and name not in ("testenv:lock", "testenv:latest"):
            assert "{[locked]set_env}" in own or "{[testenv]set_env}" in own
        if name.startswith("testenv:") and name not in ("testenv:lock", "testenv:latest"):
            assert "deps" not in tox[name]  # its group is what is locked
    with_groups = [name for name in tox.sections() if "dependency_groups" in tox[name]]
    assert sum(len(name.split(",")) for name in with_groups) > 10  # some sections are for several


def test_all_names_every_extra_that_users_have(project):
    extras = project["optional-dependencies"]
    (everything,) = extras["all"]
    named = re.fullmatch(r"yogadl\[(.*)\]", everything)[1].split(",")
    assert sorted(named) == sorted(extras.keys() - {"all", "tf", "test", "docs"})


def test_ci_runs_the_second_command_of_the_readme():
    commands = re.findall(r"```(?:sh|bash)\n(.*)\n```", (ROOT / "README.md").read_text("utf-8"))
    demo, suite = (line for line in commands if line.startswith("./run"))
    assert demo == "./run demo"
    assert suite in (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert os.access(ROOT / "run", os.X_OK)


def test_the_version_is_the_newest_of_the_changelog(project):
    import yogadl

    version = (ROOT / "yogadl" / "VERSION").read_text("utf-8").strip()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == version
    assert yogadl.__version__ == version


def test_no_page_installs_an_older_version_than_it_describes():
    """The package index may have only 0.1.4, which `pip install yogadl` takes; `>=0.2` is an error then."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    bare = re.compile(r"pip install\b[^`&\n]*?\byogadl(?:\[[\w,]+\])?(?![\w[>])(?!` installs 0\.1\.4)")
    assert {page.name: found for page in pages if (found := bare.findall(page.read_text("utf-8")))} == {}


def test_the_public_ci_runs_the_readmes_command_on_each_python_of_the_classifiers(project):
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    [matrix] = re.findall(r"^ *python: (\[.*\])$", workflow, re.MULTILINE)
    assert json.loads(matrix) == promised_pythons(ROOT)
    assert re.search(r"^ *- run: \.ci/run$", workflow, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_lowest_python_of_the_classifiers_is_the_one_that_is_required(project):
    assert project["requires-python"] == f">={promised_pythons(ROOT)[0]}"


def test_addresses_of_the_project_are_of_this_project_or_say_that_they_are_placeholders(project):
    for label, url in project["urls"].items():
        assert len(label) <= 32, "the package index takes no longer label"
        assert ("(placeholder)" in label) == url.startswith("https://example.invalid/")


def test_the_citation_names_the_package_its_authors_and_its_licence(project):
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    assert cited.startswith("cff-version: 1.2.0\n")
    assert re.findall(r"^  - name: (.*)", cited, re.MULTILINE) == [
        each["name"] for each in project["authors"]
    ]
    for key, value in {"title": project["name"], "license": project["license"], "type": "software"}.items():
        assert f"\n{key}: {value}\n" in cited
    assert "\nmessage: " in cited
    assert "\nversion: " not in cited, "yogadl/VERSION alone has the version"


def test_the_sdist_has_every_paper_that_a_stranger_looks_for():
    manifest = (ROOT / "MANIFEST.in").read_text("utf-8").split()
    papers = {path.name for path in ROOT.glob("*.*") if path.suffix in (".md", ".cff")}
    assert {"AGENTS.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "SECURITY.md"} <= papers
    assert papers - {"README.md"} <= {*manifest}  # a sdist has the README by itself
    assert {".ci", ".github"} <= {*manifest}


def test_the_newest_version_of_the_changelog_has_the_sections_of_keep_a_changelog():
    newest = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)[1]
    preface, *sections = re.split(r"^### ", newest, flags=re.MULTILINE)
    names = [section.partition("\n")[0] for section in sections]
    known = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    assert names == [name for name in known if name in names], "each once, in this order"
    assert not re.search(r"^- ", preface, re.MULTILINE), "each line is in a section"
    assert all(re.search(r"^- ", section, re.MULTILINE) for section in sections)


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


def test_tests_reach_into_the_library_by_one_module_and_by_each_of_its_names():
    """So that what moves in the library is moved in one place of the tests."""
    names, constants = {*inside._NAMES}, {*inside._CONSTANTS}
    used, own = set(), {"inside.py", "mutants.py", "public_api.py", "test_stream_types.py"}
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "inside":
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("yogadl"):
                found = [*node.module.split("."), *(alias.name for alias in node.names)]
                private = [name for name in found if re.match(r"_[^_]", name)]
                assert not private or path.name in own, f"{path}: {private}"
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "set_constants":
                used |= {keyword.arg for keyword in node.keywords if keyword.arg}
            elif isinstance(node, ast.Dict):  # of a table of constants and their values
                used |= constants & {key.value for key in node.keys if isinstance(key, ast.Constant)}
    assert used - {"set_constants", "spec_of"} == names | constants
    for name, (module, _) in inside._NAMES.items():
        if not module.startswith("yogadl.adapters."):  # which need their frameworks
            getattr(inside, name)
