"""The peers: what each is called, what it needs, and which class reads by it."""

from dataclasses import dataclass
from typing import Final

# On machines without a GPU the build of PyTorch for processors is the one to have; see `--torch`.
TORCH: Final = "torch"
# The build without CUDA; yogadl's own extra names the other one.
TENSORFLOW: Final = "tensorflow-cpu==2.21.0"


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
    Peer("numpy in RAM, for reference", "numpy", "arrays:InRam", ("numpy",)),
    Peer("yogadl", "yogadl", "yogadl_core:Core", (".",)),
    Peer("yogadl, threads for workers", "yogadl_threads", "yogadl_core:Threads", (".",)),
    Peer("yogadl through PyTorch", "yogadl_torch", "yogadl_torch:Torch", (".", TORCH)),
    Peer("yogadl through tf.data", "yogadl_tf", "yogadl_tensorflow:ThroughTfData", (".", TENSORFLOW)),
    Peer("yogadl through Grain", "yogadl_grain", "yogadl_grain:WholeBatches", (".[grain]",)),
    Peer("tf.data in memory", "tf_memory", "tf_data:InMemory", (".", TENSORFLOW)),
    Peer("tf.data cached", "tf_cached", "tf_data:Cached", (".", TENSORFLOW)),
    Peer("tf.data from_generator", "tf_generator", "tf_data:FromGenerator", (".", TENSORFLOW)),
    Peer(
        "torch DataLoader, files",
        "torch_files",
        "torch_loader:Files",
        (TORCH, "torchdata==0.11.0", "numpy==2.4.6"),
    ),
    Peer(
        "torch DataLoader, in RAM",
        "torch_ram",
        "torch_loader:Tensors",
        (TORCH, "torchdata==0.11.0", "numpy==2.4.6"),
    ),
    Peer(
        "Grain, ArrayRecord",
        "grain",
        "grain_arrayrecord:MapDataset",
        ("grain==0.2.18", "array_record==0.8.6"),
    ),
    # It imports torchvision, whose build on PyPI does not load beside a PyTorch for processors: not TORCH.
    Peer(
        "MosaicML Streaming",
        "mosaicml",
        "mosaicml:Streaming",
        ("mosaicml-streaming==0.13.0", "torchvision==0.29.1"),
    ),
    Peer("LitData", "litdata", "litdata_reader:Chunks", (TORCH, "litdata==0.2.76")),
    Peer("FFCV", "ffcv", "ffcv_reader:Beton", (TORCH, "ffcv==1.0.2", "pillow==13.0.0")),
    Peer("HF datasets", "hf", "hf_datasets:MapStyle", (TORCH, "datasets==5.2.0", "torchdata==0.11.0")),
    Peer("WebDataset", "webdataset", "webdataset_reader:Tars", (TORCH, "webdataset==1.0.2")),
    Peer("yogadl 0.1.4", "yogadl_014", "yogadl_014:Old", ("yogadl==0.1.4", TENSORFLOW)),
)
