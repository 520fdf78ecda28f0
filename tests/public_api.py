"""Write down what public modules offer, as text: their names, and how each is called.

`.tox/<environment>/bin/python tests/public_api.py` writes the files of `tests/public_names/` whose modules
can be imported there. Annotations are left out: how they look differs between versions of Python and numpy,
and mypy reads them.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

WRITTEN = Path(__file__).parent / "public_names"
CORE = (
    "yogadl", "yogadl.dataref", "yogadl.errors", "yogadl.storage", "yogadl.testing",
    "yogadl.adapters.dataflow", "yogadl.adapters.sql", "yogadl.adapters.tfds",
)  # fmt: skip
# Each is checked where its framework is installed.
FRAMEWORKS = (
    "yogadl.tensorflow", "yogadl.adapters.arrays", "yogadl.adapters.datasets", "yogadl.adapters.grain",
    "yogadl.adapters.jax", "yogadl.adapters.keras", "yogadl.adapters.lightning", "yogadl.adapters.ray",
    "yogadl.adapters.tensorflow", "yogadl.adapters.torch", "yogadl.adapters.transformers",
)  # fmt: skip
# Members that only this library's adapters call.
NOT_OFFERED = {"past_finished", "run"}


def check(name: str) -> None:
    """Fail unless a module offers what is written down."""
    before = (WRITTEN / f"{name}.txt").read_text("utf-8")
    assert described(name) == before, (
        f"{name} offers something else than tests/public_names/{name}.txt says. What users call stays as"
        " it is; what is new is written down by tests/public_api.py, and has a line in CHANGELOG.md"
    )


def described(name: str) -> str:
    """Return what a module offers, a line each."""
    module = importlib.import_module(name)
    lines = (line for public in names_of(module) for line in lines_of(public, getattr(module, public)))
    return "".join(f"{line}\n" for line in lines)


def names_of(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = (name for name in vars(module) if not name.startswith("_"))
    return sorted(name for name in own if getattr(module, name).__module__ == module.__name__)


def lines_of(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__ if base is not object]
        yield f"class {name}({', '.join(base for base in bases if not base.startswith('_'))})"
        # What it inherits from frameworks is theirs.
        own = [kind for kind in value.__mro__ if kind.__module__.partition(".")[0] == "yogadl"]
        members = {key: item for kind in reversed(own) for key, item in vars(kind).items()}
        for key, item in sorted(members.items()):
            is_public = not key.startswith(("_", "test_")) and key not in NOT_OFFERED
            if key == "__init__" or is_public:
                yield from (f"    {line}" for line in lines_of(key, getattr(item, "__func__", item)))
    elif inspect.isfunction(value):
        signature = inspect.signature(value)
        parameters = [item.replace(annotation=item.empty) for item in signature.parameters.values()]
        yield f"{name}{signature.replace(parameters=parameters, return_annotation=signature.empty)}"
    else:
        yield f"{name}: {type(value).__name__}"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))  # this tree's, not what is installed
    for module in (*CORE, *FRAMEWORKS):
        try:
            text = described(module)
        except ImportError as error:
            print(f"{module} is left as it is: {error}", file=sys.stderr)
        else:
            (WRITTEN / f"{module}.txt").write_text(text, "utf-8")
