"""Nothing is printed at the interpreter's exit, whatever still reads from a bucket or builds there."""

import json

import numpy as np
import pytest
from exits import check_quiet
from places import s3_place_at

PROGRAM = """
    import json

    kind, place, url, options = sys.argv[1:]
    storage = yogadl.open_storage(url, mirror=None, **json.loads(options))
    ref = storage.fetch("data", "1")
    stream = ref.stream(shuffle=yogadl.Blocks(records=16, window=4) if "blocks" in kind else True)
    loader = {
        "plain": lambda: stream.batch(8),
        "thread": lambda: stream.batch(8).prefetch(2),
        "threads": lambda: stream.batch(8).prefetch(4, threads=4),
        "workers": lambda: stream.batch(8).prefetch(2, workers=2),
        "blocks": lambda: stream.batch(8),
        "blocks, threads": lambda: stream.batch(8).prefetch(4, threads=4),
        "blocks, workers": lambda: stream.batch(8).prefetch(2, workers=2),
        "checked": lambda: storage.fetch("data", "1", check=True).stream(shuffle=True).batch(8).prefetch(2),
    }[kind]()
    batches = iter(loader)
    next(batches)
    held = [storage, ref, stream, loader, batches]
"""


@pytest.fixture(scope="module")
def place(ministack_endpoint):
    """A bucket with a version that is read by range."""
    place = s3_place_at(ministack_endpoint)
    storage = place.storage()
    storage.submit({"id": np.arange(1000), "text": np.zeros((1000, 3000), np.uint8)}, "data", "1")
    return place


# Each kind at one of the places; threads, workers and neither at different ones.
@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("plain", "cycle"),
        ("blocks", "module"),
        ("checked", "global"),
        ("thread", "module"),
        ("threads", "cycle"),
        ("blocks, threads", "global"),
        ("workers", "module"),
        ("blocks, workers", "cycle"),
    ],
)
def test_nothing_is_printed_at_exit(place, kind, held):
    check_quiet(PROGRAM, kind, held, place.url, json.dumps(place.options), options=["-X", "dev"])
