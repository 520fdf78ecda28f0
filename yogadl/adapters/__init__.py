"""Adapters, one package for each framework: its data as a source, a stream as its loader.

This package imports no adapter by itself, so that a framework is loaded only when its own adapter is first
used: `yogadl.adapters.torch` is available after ``import yogadl``.
"""

from importlib import import_module
from typing import Any, Final

_ADAPTERS: Final = frozenset({
    "arrays", "arrow_export", "dataflow", "grain", "jax", "keras", "ray", "sql", "tensorflow", "tfds",
    "torch",
})  # fmt: skip


def __getattr__(name: str) -> Any:  # a module; mypy can't know its names without its framework
    if name not in _ADAPTERS:
        raise AttributeError(f"module 'yogadl.adapters' has no attribute {name!r}")
    return import_module(f"yogadl.adapters.{name}")
