"""Where programs of tests start: a framework, and all that goes with it, is loaded already."""

import os

from warm import Warm, warm

DIGITS = "sklearn.datasets"  # that examples/ train on
# What the library imports when it is needed first, to build, to read and to split.
OURS = (
    "yogadl.storage", "yogadl.storage._builds.building", "yogadl._format.writer", "yogadl._views.chosen",
    "yogadl._workers.server",
)  # fmt: skip
MODULES = {
    "numpy": ("numpy",),
    "torch": (
        DIGITS, "numpy", "boto3", "torch", "torch._dynamo", "torch.distributed.checkpoint",
        "torch.distributed.device_mesh", "torch.nn.parallel", "safetensors.torch", "accelerate", "lightning",
        "torch.utils.serialization", "transformers.trainer", "yogadl.adapters.torch",
    ),
    "tensorflow": (DIGITS, "numpy", "tensorflow", "keras", "yogadl.adapters.tensorflow"),
    "jax": (
        DIGITS, "numpy", "grain", "grain.python", "jax", "jaxlib.mlir.dialects.mhlo", "orbax.checkpoint",
        "yogadl.adapters.grain", "yogadl.adapters.jax",
    ),
    "keras on torch": (DIGITS, "numpy", "keras", "yogadl.adapters.keras", "tensorflow", "torch._dynamo"),
    "keras on tensorflow": (DIGITS, "numpy", "keras", "yogadl.adapters.keras", "tensorflow"),
}  # fmt: skip
VARIABLES = {  # one process, on a machine without a network
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "1",
    "PL_TRAINER_ACCELERATOR": "cpu",
    "PL_TRAINER_DEVICES": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def programs(framework: str) -> Warm:
    """Return the server of programs that use a framework; that of Keras is the backend of its own.

    Keras loads TensorFlow as it trains, on any backend.
    """
    backend = framework.removeprefix("keras on ")
    if backend not in ("torch", "tensorflow"):
        backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    return warm(*OURS, *MODULES[framework], **VARIABLES, KERAS_BACKEND=backend)
