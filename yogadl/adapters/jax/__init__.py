"""Hand streams to JAX, as trees of arrays that are on its devices already.

The names of this module need JAX. docs/howto/jax.md covers the supported fields, many hosts and checkpoints.
"""

from yogadl.adapters import _checks

_checks.require("jax", "make_jax_iterator needs JAX: pip install 'yogadl[jax]'")

from yogadl.adapters.jax._loader import make_jax_iterator, shards

__all__ = ["make_jax_iterator", "shards"]
