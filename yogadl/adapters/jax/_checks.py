"""Check what is to go on to the devices, and that each process of the job reads what it should."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from yogadl._caller import users_level
from yogadl._spec import Field
from yogadl._stream import RecordStream
from yogadl.errors import ConfigurationError, UnsupportedDataError


def check_fields(fields: Sequence[Field]) -> None:
    """Refuse fields that JAX has no arrays for, and name those that it would make narrower.

    Raises:
        UnsupportedDataError: names the first field that can't go on to a device.
    """
    narrowed = []
    for field in fields:
        dtype = _dtype_on_device(field)
        if dtype != field.leaf.numpy_dtype:
            narrowed.append(f"{field.name!r} ({field.leaf.dtype} to {dtype})")
    if narrowed:
        warnings.warn(
            f"JAX makes these fields narrower, and cuts off what does not fit: {', '.join(narrowed)}. Allow "
            'wide types by jax.config.update("jax_enable_x64", True), or store narrow ones',
            UserWarning,
            stacklevel=users_level(),
        )


def _dtype_on_device(field: Field) -> Any:  # a numpy dtype
    """Return the dtype that a field has on a device."""
    leaf = field.leaf
    if not leaf.is_fixed:
        what = f"holds {leaf.dtype}" if not leaf.is_numeric else "holds arrays of varying shape"
        raise UnsupportedDataError(
            f"field {field.name!r} {what}, which can't go on to a device: choose the other fields by "
            "ref.fields(...), or store it as arrays of numbers of one shape"
        )
    try:
        return jax.device_put(np.zeros((), leaf.numpy_dtype)).dtype
    except (TypeError, RuntimeError) as error:
        mend = "view it as int64 before it is cached, or " if leaf.dtype[:4] in ("date", "time") else ""
        raise UnsupportedDataError(
            f"field {field.name!r} has dtype {leaf.dtype}, of which JAX has no arrays: {mend}choose the "
            "other fields by ref.fields(...)"
        ) from error


def check_share(stream: RecordStream, spanned: int | None) -> None:
    """Check that each process reads what it should.

    Args:
        stream: What it reads.
        spanned: On how many processes' devices a batch lies; ``None`` without a sharding.

    Raises:
        ConfigurationError: if the batches are the whole job's, but the stream is only a share.
    """
    shard, processes = stream.shard, jax.process_count()
    if shard.ranks > 1 and spanned == processes:
        raise ConfigurationError(
            "with a sharding each process finds its own rows of the job's batches, but the stream is shard "
            f"{shard.rank} of {shard.ranks} already: open it without shard_rank and num_shards"
        )
    if shard.ranks == 1 and (spanned or 1) < processes:
        warnings.warn(
            f"the job has {processes} processes, and each reads all of the records: open the stream with "
            "**yogadl.adapters.jax.shards(), or pass a sharding over all devices",
            UserWarning,
            stacklevel=users_level(),
        )
