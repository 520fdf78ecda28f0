"""Let another library write files in a process of its own, and say which records it reads of them."""

import os
import pickle
import subprocess
import sys


def records_of_library(script, folder, *arguments, **environment):
    """Return what a script writes down: called with a folder of files and the file of its result."""
    result = folder.parent / f"{folder.name}.pickle"
    command = [sys.executable, script, folder, result, *arguments]
    subprocess.run(command, env=os.environ | environment, check=True, timeout=240)
    return pickle.loads(result.read_bytes())
