"""Make what a release consists of, and try it; nothing is uploaded: `tox -e release`.

It builds the sdist, and the wheel out of the sdist, and checks both as the package index does. It installs
the wheel in an empty environment of each Python that the classifiers name and this machine has, runs the demo
there and reads the golden cache. It cuts the notes of the version from the changelog. All of it lies in
`dist/VERSION/`. A warning of any step is a failure.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
WARNED = re.compile(r"\bwarning\b|\w+Warning\b|\bdeprecated\b", re.I)


class ReleaseError(Exception):
    """Something is not fit for a release; the message says what."""


def promised_pythons(root: Path) -> list[str]:
    """Return the versions of Python that the classifiers name."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in project["classifiers"]
    ]
    return [match[1] for match in found if match]


def notes_of(changelog: str, version: str) -> tuple[str, bool]:
    """Return the section of a version, which must be the newest, and whether the section has a date."""
    heading, *lines = re.split(r"^(?=## )", changelog, flags=re.M)[1].splitlines()
    found = re.fullmatch(r"## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)", heading)
    if not found or found[1] != version:
        raise ReleaseError(
            f"the newest section of CHANGELOG.md is {heading!r}; yogadl/VERSION says {version}, so it "
            f"should be '## {version} (YYYY-MM-DD)', or '(unreleased)' until the day"
        )
    return "\n".join(lines).strip() + "\n", found[2] != "unreleased"


def run(*command: str | Path, **environment: str) -> str:
    """Run a command; if it fails or warns, raise all that it printed."""
    words = [str(word) for word in command]
    ran = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if ran.returncode or WARNED.search(ran.stdout):
        said = "failed" if ran.returncode else "warned"
        raise ReleaseError(f"{' '.join(words)}\n{said}:\n{ran.stdout}")
    return ran.stdout


def with_all_of_pyenv() -> dict[str, str]:
    """Return what makes pyenv offer each Python that it has, if it is used here; else it offers one."""
    if not shutil.which("pyenv"):
        return {}
    listed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True).stdout.split()
    return {"PYENV_VERSION": ":".join(name for name in listed if re.fullmatch(r"[\d.]+", name))}


def interpreter(version: str, environment: dict[str, str]) -> str | None:
    """Return the path of a Python of this machine, or None; nothing is downloaded."""
    found = subprocess.run(
        ["uv", "python", "find", "--no-python-downloads", "--system", version],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    return found.stdout.strip() or None


def build(folder: Path, version: str) -> tuple[Path, Path]:
    """Build the sdist, and the wheel out of it, in an empty folder."""
    # With that variable set, setuptools warns that it compiles nothing.
    run("uv", "build", "--no-python-downloads", "--out-dir", folder, PYTHONDONTWRITEBYTECODE="")
    (folder / ".gitignore").unlink(missing_ok=True)
    sdist, wheel = folder / f"yogadl-{version}.tar.gz", folder / f"yogadl-{version}-py3-none-any.whl"
    made = {path.name for path in folder.iterdir()}
    if made != {sdist.name, wheel.name}:
        raise ReleaseError(f"built {sorted(made)} instead of {sdist.name} and {wheel.name}")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    run(sys.executable, "-m", "check_wheel_contents", "--toplevel=yogadl", "--package=yogadl", wheel)
    return sdist, wheel


def try_wheel(wheel: Path, python: str) -> None:
    """Install a wheel in an empty environment; run the demo and read the golden cache there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("uv", "venv", "--quiet", "--no-python-downloads", "--python", python, folder / "env")
        run("uv", "pip", "install", "--quiet", "--python", folder / "env", wheel)
        binaries = folder / "env" / "bin"
        run(binaries / "yogadl", "demo", "--dir", folder / "demo", PYTHONWARNINGS="error")
        said = run(binaries / "python", "-I", "-W", "error", ROOT / "tests" / "golden" / "read.py")
        if str(folder) not in said:
            raise ReleaseError(f"another yogadl than the wheel's was tried: {said}")


def main() -> None:
    """Make and try a release, and say what is left to do."""
    version = (ROOT / "yogadl" / "VERSION").read_text("utf-8").strip()
    notes, is_dated = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    folder = ROOT / "dist" / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sdist, wheel = build(folder, version)
    offered, missing = with_all_of_pyenv(), []
    for python in promised_pythons(ROOT):
        path = interpreter(python, offered)
        if path is None:
            missing.append(python)
            continue
        try_wheel(wheel, path)
        print(f"Python {python}: the wheel is installed, the demo runs, the golden cache is read")
    (folder / "notes.md").write_text(notes, "utf-8")
    for path in (sdist, wheel, folder / "notes.md"):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    if missing:
        print(f"Not tried, because this machine does not have it: Python {', '.join(missing)}")
    if not is_dated:
        print(f"CHANGELOG.md calls {version} unreleased: write the day there, commit, and run this again")
    if shutil.which("git"):
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True)
        if changed.stdout:
            print("Some files differ from what is committed: a release is made from a clean clone")
    print("Nothing is uploaded. The line that is left: see docs/howto/releasing.md")


if __name__ == "__main__":
    try:
        main()
    except ReleaseError as error:
        sys.exit(f"no release: {error}")
