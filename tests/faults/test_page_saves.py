"""Scripts of pages that need no framework, killed inside their saves, end with the weights of a whole run."""

from pathlib import Path

import numpy as np
import pages
import pytest
from killed_saves import killed
from soak import few_or_many

import yogadl

TEXT = {"tokens": np.arange(3 * 90, dtype=np.int32).reshape(90, 3) % 27}
POWER = {
    "x": np.random.default_rng(0).random((150, 2)),
    "power": np.arange(150.0),
    "line": [f"{number}" for number in range(150)],
}


@pytest.mark.parametrize(
    ("page", "dataset", "source", "arguments", "watched"),
    [
        ("howto/tokens.md", "letters", TEXT, ["run", "0"], "run/new.npz"),
        ("stories/many_tasks.md", "power", POWER, ["0"], "new.json"),
    ],
)
def test_a_pages_script_that_is_killed_inside_its_saves_goes_on(
    page, dataset, source, arguments, watched, tmp_path, monkeypatch
):
    folder = tmp_path / "start"
    yogadl.open_storage(folder / "caches", shared=dataset == "power").submit(source, dataset, "1")
    (block,) = [one for one in pages.blocks(page) if 'Path("train.py").write_text' in one]
    monkeypatch.chdir(folder)
    pages.run(page, [block], Path=Path)
    code = Path("train.py").read_text().replace("step % 20", "step % 2")
    script = f"{code}\nnp.savez('weights.npz', weights=weights)\n"
    step = few_or_many(11, 1)
    points = killed(
        folder,
        script,
        arguments,
        result="weights.npz",
        watched=watched,
        framework="numpy",
        step=step,
    )
    assert points == {"no file", "empty file", "rename"}
