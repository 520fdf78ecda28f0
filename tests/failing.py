"""A stream with a function that fails at one record, and what a reader of it must see."""

import re

import numpy as np
import pytest

import yogadl
from yogadl.errors import StageError

FAILS = 70


def label_of(record):
    """Fail at one record."""
    if record["id"] == FAILS:
        raise LookupError("no label")
    return {"id": record["id"], "label": np.float32(record["id"])}


def failing():
    """Return a stream of 103 records, in order, with a function that fails at one."""
    return yogadl.from_source({"id": np.arange(103, dtype=np.int32)}).stream().map(label_of)


def check_error(batches, size, error=StageError):
    """Check that the whole batches before that record come, then an error that names it; return that."""
    seen = []
    what = re.escape(f"map(label_of) failed at record {FAILS}: LookupError: no label")
    with pytest.raises(error, match=what) as raised:
        seen.extend(np.ravel(np.asarray(batch["id"])).tolist() for batch in batches)
    assert [i for ids in seen for i in ids] == list(range(FAILS // size * size))
    return raised.value
