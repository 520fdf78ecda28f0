"""yogadl through PyTorch, as it is in this checkout."""

from pathlib import Path
from typing import Any

from data import Data
from readers import SEED, Stateful

import yogadl
from yogadl.adapters import torch as yogadl_torch


class Torch(Stateful):
    """A stream of yogadl as a loader of PyTorch, by `make_dataloader`.

    `storage.submit(arrays)`, or `submit(records)` for byte strings; then `ref.stream(shuffle=True)` and
    `make_dataloader(stream, batch_size=n, num_workers=w)`, with `persistent_workers=True` where there are
    workers. Resume is the loader's `state_dict` and `load_state_dict`. A batch is a dict of tensors, and a
    list of bytes.
    """

    def __init__(self, data: Data, folder: Path, workers: int) -> None:
        super().__init__(data, folder, workers)
        stream = yogadl.open_storage(folder).fetch("set", "1").stream(shuffle=True, shuffle_seed=SEED)
        self._loader: Any = yogadl_torch.make_dataloader(
            stream, batch_size=data.batch, num_workers=workers, persistent_workers=workers > 0
        )

    @classmethod
    def build(cls, data: Data, folder: Path) -> None:
        source = list(data) if data.varying else data.columns
        yogadl.open_storage(folder).submit(source, "set", "1")
