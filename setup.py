"""Refuse Windows, build in a folder of our own; everything else stands in pyproject.toml."""

import sys
import tempfile

from setuptools import setup

if sys.platform == "win32":
    sys.exit("yogadl runs on Linux and macOS, not on Windows: please use WSL.")

# Not in ./build, where setuptools leaves every module it ever saw, and packs it into the next wheel.
with tempfile.TemporaryDirectory(prefix="yogadl-build-") as folder:
    setup(options={"build": {"build_base": folder}})
