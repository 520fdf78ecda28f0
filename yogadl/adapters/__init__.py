"""Hold a package for each framework: its data as a source, a stream as its loader.

Nothing is imported here, so that a framework is loaded only by its own adapter, when that is first asked for:
`yogadl.adapters.torch` is there after ``import yogadl``.
"""

from importlib import import_module
from typing import Any, Final

_ADAPTERS: Final = frozenset({
    "arrays", "arrow_export", "dataflow", "grain", "jax", "keras", "ray", "sql", "tensorflow", "tfds",
    "torch",
})  # fmt: skip


def __getattr__(name: str) -> Any:  # a module, whose names mypy could not know without its framework
    if name not in _ADAPTERS:
        raise AttributeError(f"module 'yogadl.adapters' has no attribute {name!r}")
    return import_module(f"yogadl.adapters.{name}")
