"""Adapters, one package for each framework: its data as a source, a stream as its loader.

This package imports no adapter by itself, so that a framework is loaded only when its own adapter is first
used: `yogadl.adapters.torch` is available after ``import yogadl``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from yogadl.adapters import arrays as arrays
    from yogadl.adapters import arrow_export as arrow_export
    from yogadl.adapters import dataflow as dataflow
    from yogadl.adapters import datasets as datasets
    from yogadl.adapters import grain as grain
    from yogadl.adapters import jax as jax
    from yogadl.adapters import keras as keras
    from yogadl.adapters import lightning as lightning
    from yogadl.adapters import ray as ray
    from yogadl.adapters import sql as sql
    from yogadl.adapters import tensorflow as tensorflow
    from yogadl.adapters import tfds as tfds
    from yogadl.adapters import torch as torch
    from yogadl.adapters import transformers as transformers

_ADAPTERS: Final = frozenset({
    "arrays", "arrow_export", "dataflow", "datasets", "grain", "jax", "keras", "lightning", "ray", "sql",
    "tensorflow", "tfds", "torch", "transformers",
})  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # a module
        if name not in _ADAPTERS:
            raise AttributeError(f"module 'yogadl.adapters' has no attribute {name!r}")
        return import_module(f"yogadl.adapters.{name}")
