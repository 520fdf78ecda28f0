"""examples/train_keras.py, killed, asked to stop, and gone on with."""

import json
import zipfile
from signal import SIGTERM

from example_contract import SELDOM, STEPS, Stop, StoppableContract


class TestKeras(StoppableContract):
    script = "train_keras.py"
    framework = "keras on torch"
    points = ("no file", "empty file", "rename")
    whole_ranks = 1
    stops = (
        Stop(1, save_every=STEPS),
        Stop(1, save_every=4, epochs=2),
        Stop(1, save_every=SELDOM, signal=SIGTERM),
    )

    @classmethod
    def is_ready(cls, stop, folder):
        """Keras's checkpoint is of epochs' ends, too: the second kill waits for one of within."""
        if stop.save_every != 4:
            return True
        with zipfile.ZipFile(folder / "checkpoint" / "model.keras") as file:
            return json.loads(file.read("yogadl.json"))["cursor"]["position"] < STEPS * 96
