"""Programs that end while something is alive, which something holds that outlives yogadl or not."""

import subprocess
import sys
import textwrap

PLACES = ["global", "module", "cycle"]
# A module that was imported before yogadl, and that outlives it, lets go of what it holds when the globals
# of yogadl's modules are gone already.
_BEGIN = """
import sys, types
keeper = sys.modules["keeper"] = types.ModuleType("keeper")
sys.keeper = keeper
import numpy as np
import yogadl

class Box:
    pass
"""
_END = """
box = Box()
box.held = [*held, *(m for name, m in sys.modules.items() if "yogadl" in name)]
if place == "cycle":
    box.itself = box
if place != "global":
    keeper.box = box
    for name in [name for name, value in globals().items() if any(value is one for one in [box, *held])]:
        del globals()[name]
    del held
print("end")
"""


def check_quiet(program, *arguments, options=(), timeout_s=60):
    """Run a program, which says in `held` what is alive and in `place` where; nothing else may be printed."""
    program = _BEGIN + textwrap.dedent(program) + _END
    command = [sys.executable, *options, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    found = done.returncode, done.stdout, done.stderr
    assert found == (0, "end\n", ""), found
