"""Where programs of these tests start: Keras is loaded already, on a backend."""

from importlib.util import find_spec

from warm import Warm, warm


def keras_programs(backend: str) -> Warm:
    """Return the server of programs that use Keras on a backend."""
    modules = ["numpy", "keras", "yogadl.adapters.keras"]
    if find_spec("tensorflow"):
        modules.append("tensorflow")  # on any backend, as it trains
    if backend == "torch":
        modules.append("torch._dynamo")
    return warm(*modules, KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")
