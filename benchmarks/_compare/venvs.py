"""One virtual environment for all peers that need the same."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from _compare.peers import TORCH, Peer

_INSTALL_S: Final = 1800
# What has no wheel, and asks for what must be there before it can be built.
_BUILT_WITH: Final = {"ffcv": ("setuptools", "wheel", "numpy", "pkgconfig")}


class InstallError(Exception):
    """What a peer needs can't be installed; its text says why."""


class Venvs:
    """Makes virtual environments, each once; they are kept for the next run.

    Args:
        folder: Where they are.
        checkout: What "." means.
        torch: What to ask pip for as PyTorch.
    """

    def __init__(self, folder: Path, checkout: Path, torch: str) -> None:
        self._folder = folder.resolve()
        self._checkout = checkout
        self._torch = torch
        self._made: dict[tuple[str, ...], Path | InstallError] = {}

    def python(self, peer: Peer) -> Path:
        """Return the Python that has what a peer needs.

        Raises:
            InstallError: if it can't be installed.
        """
        if peer.needs not in self._made:
            try:
                self._made[peer.needs] = self._make(peer.needs)
            except InstallError as error:
                self._made[peer.needs] = error
        made = self._made[peer.needs]
        if isinstance(made, InstallError):
            raise made
        return made

    def _make(self, needs: tuple[str, ...]) -> Path:
        asked = [self._torch if need == TORCH else need for need in needs]
        venv = self._folder / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
        python, ready = venv / "bin" / "python", venv / "ready"
        if not ready.exists():
            print(f"  installing {', '.join(needs)}", file=sys.stderr, flush=True)
            shutil.rmtree(venv, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(venv)])
            # PyTorch first: another package's range would bring another build.
            if TORCH in needs:
                self._pip(python, self._torch)
            for name, tools in _BUILT_WITH.items():
                for need in (need for need in asked if need.startswith(name)):
                    self._pip(python, *tools)
                    self._pip(python, "--no-build-isolation", need)
            self._pip(python, *(self._path(need) for need in asked))
            ready.touch()
        elif any(need.startswith(".") for need in needs):  # the checkout may have changed
            self._pip(python, "--force-reinstall", "--no-deps", str(self._checkout))
        return python

    def _path(self, need: str) -> str:
        return f"{self._checkout}{need[1:]}" if need.startswith(".") else need

    def _pip(self, python: Path, *arguments: str) -> None:
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        raise InstallError(f"installing took more than {_INSTALL_S} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = next(
            (line for line in said if line.lower().startswith("error:")), said[-1] if said else "no word"
        )
        raise InstallError(f"does not install: {why[:200]}")
