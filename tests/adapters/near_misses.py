"""What users hand to an adapter in place of a stream, or ask of it that the stream says, and the answers."""

import re

import numpy as np
import pytest

import yogadl
from yogadl.errors import ConfigurationError

REF = yogadl.from_source({"x": np.arange(10, dtype=np.float32), "y": np.arange(10, dtype=np.int32)})

NO_STREAMS = {
    "a DataRef": (REF, "pass a stream of it, such as ref.stream(shuffle=True)"),
    "a view": (REF[2:], "pass a stream of it"),
    "a loader": (REF.stream().batch(2), "pass the stream itself, and batch_size="),
    "a stream of one's own": (
        yogadl.Stream(lambda: iter([1]), 1),
        "pass what DataRef.stream of this library",
    ),
    "arrays": ({"x": np.arange(3)}, "a dict is no stream: pass what ref.stream(...) returned"),
    "nothing": (None, "a NoneType is no stream"),
}


def check_what_is_no_stream(make, *, takes_own=False):
    """Check what `make` says to each of them."""
    for name, (given, says) in NO_STREAMS.items():
        if not (takes_own and name == "a stream of one's own"):
            with pytest.raises(ConfigurationError, match=re.escape(says)):
                make(given)


def check_no_batch(make):
    """Check that `make` warns where a batch takes more records than there are, and must be full."""
    with pytest.warns(UserWarning, match="there is no batch to read: 10 records make none of 64"):
        assert list(make(REF.stream(), 64)) == []


def check_names(make, wrong):
    """Check what `make` says to arguments that it does not have: those of every adapter, and `wrong`."""
    of_the_stream = {
        "shuffle": "ref.stream(shuffle=...)",
        "seed": "ref.stream(shuffle_seed=...)",
        "cursor": "ref.stream(cursor=...)",
        "num_shard": "ref.stream(num_shards=...)",
        "rank": "ref.stream(shard_rank=...)",
    }
    for name, says in {**of_the_stream, **wrong}.items():
        with pytest.raises(ConfigurationError, match=f"has no argument '{name}'.*{re.escape(says)}"):
            make(REF.stream(), **{name: 1})
