"""The peers: what each is called, what it needs, and which class reads by it."""

from dataclasses import dataclass
from typing import Final

# On machines without a GPU the build of PyTorch for processors is the one to have; see `--torch`.
TORCH: Final = "torch"


@dataclass(frozen=True)
class Peer:
    """One row of the table.

    Args:
        name: As the table calls it.
        key: As options call it; its form of each set lies in a folder of that name.
        reader: Module and class in `readers`.
        needs: What pip installs; peers that need the same share a virtual environment. "." is this checkout.
    """

    name: str
    key: str
    reader: str
    needs: tuple[str, ...]


PEERS: Final = (
    Peer("numpy in RAM (the limit)", "numpy", "arrays:InRam", ("numpy",)),
    Peer("yogadl", "yogadl", "yogadl_core:Core", (".",)),
    Peer("yogadl through PyTorch", "yogadl-torch", "yogadl_torch:Torch", (".", TORCH)),
    Peer("torch DataLoader", "torch", "torch_loader:Files", (TORCH, "torchdata==0.11.0")),
    Peer(
        "torch DataLoader, tensors in RAM", "torch-ram", "torch_loader:Tensors", (TORCH, "torchdata==0.11.0")
    ),
    # It imports torchvision, whose build on PyPI does not load beside a PyTorch for processors: not TORCH.
    Peer(
        "MosaicML Streaming",
        "mosaicml",
        "mosaicml:Streaming",
        ("mosaicml-streaming==0.13.0", "torchvision==0.29.2"),
    ),
    Peer("LitData", "litdata", "litdata_reader:Chunks", (TORCH, "litdata==0.2.76")),
)
