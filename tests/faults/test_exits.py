"""Nothing is printed at the interpreter's exit, whatever is still alive, and wherever it is held."""

import subprocess
import sys
import textwrap

import pytest

# A module that was imported before yogadl, and that outlives it, lets go of what it holds when the globals
# of yogadl's modules are gone already.
PROGRAM = """
    import sys, types
    keeper = sys.modules["keeper"] = types.ModuleType("keeper")
    sys.keeper = keeper
    import numpy as np
    import yogadl

    class Box:
        pass

    kind, place, folder = sys.argv[1:]
    storage = yogadl.open_storage(folder)
    storage.submit({"id": np.arange(1000)}, "ids", "1")
    ref = storage.fetch("ids", "1")
    stream = ref.stream(shuffle=True)
    loader = {
        "plain": lambda: stream.batch(8),
        "thread": lambda: stream.batch(8).prefetch(2),
        "threads": lambda: stream.batch(8).prefetch(2, threads=2),
        "threads and stages": lambda: stream.batch(8).prefetch(2).map(dict).prefetch(2),
        "workers": lambda: stream.batch(8).prefetch(2, workers=2),
        "forked workers": lambda: stream.batch(8).prefetch(2, workers=2, start_method="fork"),
        "workers and a thread": lambda: stream.batch(8).prefetch(2, workers=2).prefetch(2),
        "records": lambda: stream.prefetch(2),
        "filter": lambda: ref.filter(lambda record: record["id"] % 2 == 0).stream().batch(8).prefetch(2),
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
KINDS = [
    "plain", "thread", "threads", "threads and stages", "workers", "forked workers", "workers and a thread",
    "records", "filter",
]  # fmt: skip


@pytest.mark.parametrize("options", [[], ["-X", "dev"]], ids=["", "dev"])
@pytest.mark.parametrize("place", ["global", "module", "cycle"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_printed_at_exit(kind, place, options, tmp_path):
    program = textwrap.dedent(PROGRAM)
    command = [sys.executable, *options, "-c", program, kind, place, str(tmp_path / "caches")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
