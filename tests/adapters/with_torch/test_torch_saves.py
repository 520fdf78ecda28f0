"""Scripts of the pages about PyTorch, killed inside their saves, end with the weights of one that was not."""

import numpy as np
import pytest
from killed_saves import killed

import yogadl


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
    points = killed(folder, script, result="weights.npz", watched="runs", modules=modules, step=step)
    assert "rename" in points and points & {"half a file", "empty file"}
