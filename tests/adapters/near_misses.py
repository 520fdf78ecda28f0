"""What users hand to an adapter in place of a stream, or ask of it that the stream says, and the answers."""

import re

import numpy as np
import pytest

import yogadl
from yogadl.errors import ConfigurationError
from yogadl.testing import AdapterContract

REF = yogadl.from_source({"x": np.arange(10, dtype=np.float32), "y": np.arange(10, dtype=np.int32)})

NO_STREAMS = [
    (REF, "pass a stream of it, such as ref.stream(shuffle=True)"),
    (REF[2:], "pass a stream of it"),
    (REF.stream().batch(2), "pass the stream itself, and batch_size="),
    ({"x": np.arange(3)}, "a dict is no stream: pass what ref.stream(...) returned"),
    (None, "a NoneType is no stream"),
]
OF_THE_STREAM = [
    ("shuffle", "ref.stream(shuffle=...)"),
    ("seed", "ref.stream(shuffle_seed=...)"),
    ("cursor", "ref.stream(cursor=...)"),
    ("num_shard", "ref.stream(num_shards=...)"),
    ("rank", "ref.stream(shard_rank=...)"),
]


def check_refusals(make, names):
    """Check what `make` says to what is no stream, and to names that it, or every adapter, does not have."""
    for given, says in NO_STREAMS:
        with pytest.raises(ConfigurationError, match=re.escape(says)):
            make(given)
    for name, says in (*OF_THE_STREAM, *names):
        with pytest.raises(ConfigurationError, match=f"has no argument '{name}'.*{re.escape(says)}"):
            make(REF.stream(), **{name: 1})


def check_no_batch(make):
    """Check that `make` warns where a batch takes more records than there are, and must be full."""
    with pytest.warns(UserWarning, match="there is no batch to read: 10 records make none of 64"):
        assert list(make(REF.stream(), batch_size=64)) == []


class Adapter(AdapterContract):
    """The contract, and what this library's own adapters say besides.

    Attributes:
        names: Names that users of the framework would try, each with what the error says to write.
    """

    names = ()

    def test_what_is_no_stream_and_what_is_no_argument_is_refused(self):
        check_refusals(lambda stream, **names: self.make(stream, 2, **names), self.names)
