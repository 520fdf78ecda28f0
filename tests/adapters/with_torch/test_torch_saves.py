"""Scripts of the pages about PyTorch, killed inside their saves, end with the weights of one that was not."""

import io
from pathlib import Path

import numpy as np
import pages
import pytest
from killed_saves import killed
from PIL import Image

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
    ("trainer", "model"), [("Accelerate", "model"), ("Lightning", ""), ("HF Trainer", "")]
)
def test_a_trainers_script_that_is_killed_inside_its_saves_goes_on(trainer, model, folder):
    script = TRAINER.replace("{trainer}", trainer).replace("{model}", model)
    points = killed(folder, script, result="weights.npz", watched="runs", framework="torch")
    assert "rename" in points
    if trainer != "Lightning":  # it writes in the folder of temporary files
        assert points & {"half a file", "empty file"}


DISTRIBUTED = """
    import numpy as np
    import pages, torch, yogadl
    from yogadl.adapters import torch as yogadl_torch

    stream = yogadl.open_storage("caches").fetch("digits", "1").stream(shuffle=True, shuffle_seed=7)
    names = {"torch": torch, "loader": yogadl_torch.make_dataloader(stream, 64)}
    names["resumed"] = yogadl_torch.make_dataloader(stream, 64)
    (code,) = pages.blocks("howto/pytorch.md", "A loader is what `torch.distributed.checkpoint`")
    names = pages.run("howto/pytorch.md", [code.split("model = torch")[0]], **names)
    torch.manual_seed(0)
    model, loader = torch.nn.Linear(64, 10), names["loader"]
    names["restore"](model, loader)
    for epoch in range(loader.state_dict()["epoch"], 2):
        for batch in loader:
            loss = model(batch["image"].flatten(1)).square().mean()
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
                    weight.grad = None
            at = loader.state_dict()
            names["save"](at["epoch"] * 384 + at["position"], model, loader)
    np.savez("weights.npz", *[weight.detach().numpy() for weight in model.parameters()])
"""


def test_a_save_of_torch_distributed_checkpoint_that_is_killed_is_not_loaded(folder):
    points = killed(folder, DISTRIBUTED, result="weights.npz", watched="checkpoints", framework="torch")
    assert points >= {"mkdir", "no file", "empty file", "rename"}


PAGES = {  # what makes them short, and where their weights are
    "howto/preemption.md": ({"num_workers=2": "num_workers=0"}, "layer"),
    "stories/images.md": ({"num_workers=2": "num_workers=0", "step % 10": "step % 2"}, "model"),
    "stories/language_model.md": (
        {'"s3://corpus/caches", mirror="mirror"': '"caches"', "step % 20": "step % 2"},
        "model",
    ),
    "stories/robots.md": ({"step % 10": "step % 2"}, "model"),
}
RUN_ALONE = """
    import sys
    from pathlib import Path
    import numpy as np

    code, model, *ends = sys.argv[1:]
    sys.argv = ["train.py", "run", "0", "SIGTERM"]
    for end in ends or [""]:  # a script that saves as it stops is stopped after each epoch
        names = {"__name__": "__main__"}
        exec(compile(Path(code).read_text().replace("10_000", end), code, "exec"), names)
    np.savez("weights.npz", *[weight.detach().numpy() for weight in names[model].parameters()])
"""


def jpeg(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG")
    return file.getvalue()


def steps(random):
    """Yield the steps of a robot with two cameras, six an episode."""
    for index in range(96):
        top, wrist = (jpeg(image) for image in random.integers(0, 256, (2, 48, 48), np.uint8))
        state, action = random.random((2, 2), np.float32)
        seen = {"images": {"top": top, "wrist": wrist}, "state": state}
        yield {"observation": seen, "action": action, "episode": index // 6, "index": index}


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_script_that_is_killed_inside_its_saves_goes_on(page, folder, monkeypatch):
    random = np.random.default_rng(0)
    storage = yogadl.open_storage(folder / "caches")
    images = random.integers(0, 256, (96, 32, 32), np.uint8)
    files = [f"{number}.png" for number in range(96)]
    jpegs = [jpeg(image) for image in images]
    of_page = jpegs if page == "stories/images.md" else images
    columns = {"image": of_page, "label": np.arange(96) % 3, "file": files}
    storage.submit(columns, "pictures", "1")
    for name in ("web", "code"):
        storage.submit({"tokens": random.integers(1, 128, (80, 64), np.int32)}, name, "1")
    storage.submit(steps(random), "reach", "1")
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    shorter, model = PAGES[page]
    (block,) = [one for one in pages.blocks(page) if 'Path("train.py").write_text' in one]
    for text, other in shorter.items():
        assert text in block
        block = block.replace(text, other)
    monkeypatch.chdir(folder)
    pages.run(page, [block], Path=Path)
    ends = ["1", "2", "3"] if "10_000" in block else []
    watched = "checkpoint.pt" if ends else "run/new.pt"
    points = killed(
        folder,
        RUN_ALONE,
        ["train.py", model, *ends],
        result="weights.npz",
        watched=watched,
        framework="torch",
    )
    assert points >= {"before save", "half a file", "rename"}
