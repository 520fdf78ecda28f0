"""Where programs of these tests start: PyTorch and its trainers are loaded already."""

from killed_saves import VARIABLES
from warm import Warm, warm

MODULES = (
    "numpy", "torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.device_mesh",
    "torch.nn.parallel", "safetensors.torch", "accelerate", "lightning", "transformers.trainer",
    "yogadl.adapters.torch",
)  # fmt: skip


def torch_programs() -> Warm:
    """Return the server of programs that use PyTorch."""
    return warm(*MODULES, **VARIABLES)
