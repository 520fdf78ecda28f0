"""Nothing is printed at the interpreter's exit, whatever still reads from a bucket or builds there."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from places import s3_place_at

import yogadl

# A module that was imported before yogadl outlives the globals of yogadl's modules.
PROGRAM = """
    import json, sys, types
    keeper = sys.modules["keeper"] = types.ModuleType("keeper")
    sys.keeper = keeper
    import numpy as np
    import yogadl

    class Box:
        pass

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
    box = Box()
    box.held = [storage, ref, loader, batches, *(m for name, m in sys.modules.items() if "yogadl" in name)]
    if place == "cycle":
        box.itself = box
    if place != "global":
        keeper.box = box
        del box, storage, ref, stream, loader, batches
    print("end")
"""
KINDS = ["plain", "thread", "threads", "workers", "blocks", "blocks, threads", "blocks, workers", "checked"]


@pytest.fixture(scope="module")
def place(moto_endpoint):
    """A bucket with a version that is read by range."""
    place = s3_place_at(moto_endpoint)
    storage = yogadl.open_storage(place.url, mirror=None, **place.options)
    storage.submit({"id": np.arange(1000), "text": np.zeros((1000, 3000), np.uint8)}, "data", "1")
    return place


@pytest.mark.parametrize("held", ["global", "module", "cycle"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_printed_at_exit(place, kind, held):
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(PROGRAM), kind, held, place.url]
    command.append(json.dumps(place.options))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
