"""Scripts of the pages about PyTorch, killed inside their saves, end with the weights of one that was not."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pages
import pytest

import yogadl

TESTS = Path(pages.__file__).parent


def killed(folder, script, result, watched, modules, step, *arguments):
    """Run `killed_saves.py`; return how many points of saves there were."""
    (folder.parent / "script.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-W", "ignore", TESTS / "killed_saves.py", folder.parent / "script.py"]
    done = subprocess.run(
        [*map(str, command), result, watched, ",".join(modules), str(step), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "ACCELERATE_USE_CPU": "1",
            "PL_TRAINER_ACCELERATOR": "cpu",
            "PL_TRAINER_DEVICES": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        },
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return int(re.search(r"^(\d+) points$", done.stdout, re.M)[1])


@pytest.fixture
def folder(tmp_path):
    """Return a folder to run in, with the page's data set."""
    storage = yogadl.open_storage(tmp_path / "start" / "caches")
    random = np.random.default_rng(0)
    images = random.random((384, 8, 8), np.float32)
    storage.submit({"image": images, "label": np.arange(384) % 10}, "digits", "1")
    storage.submit({"x": random.random((48, 8), np.float32), "id": np.arange(48)}, "numbers", "1")
    return tmp_path / "start"


TRAINER = """
    from pathlib import Path
    import numpy as np
    import pages, torch, yogadl
    from yogadl.adapters import torch as yogadl_torch

    torch.manual_seed(0)
    ref = yogadl.open_storage("caches").fetch("digits", "1")
    common = pages.blocks("howto/pytorch.md", "**Evaluating**", "All of them train this model")
    names = pages.run("howto/pytorch.md", common, torch=torch, yogadl_torch=yogadl_torch, ref=ref, Path=Path)
    names = pages.run("howto/pytorch.md", pages.blocks("howto/pytorch.md", "**{trainer}.**"), **names)
    model = names["{model}"] if "{model}" in names else names["trainer"].model
    np.savez("weights.npz", *[weight.detach().numpy() for weight in model.parameters()])
"""


@pytest.mark.parametrize(
    ("trainer", "module", "model", "step"),
    [
        ("Accelerate", "accelerate", "model", 17),
        ("Lightning", "lightning", "", 3),
        ("HF Trainer", "transformers.trainer", "", 17),
    ],
)
def test_a_trainers_script_that_is_killed_inside_its_saves_goes_on(trainer, module, model, step, folder):
    script = TRAINER.replace("{trainer}", trainer).replace("{model}", model)
    modules = ["torch", "torch._dynamo", "safetensors.torch", "yogadl.adapters.torch", module]
    assert killed(folder, script, "weights.npz", "runs", modules, step) > 2
