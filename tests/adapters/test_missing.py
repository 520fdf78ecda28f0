"""An adapter says what to install where its framework is missing, and nothing else of yogadl loads one."""

import importlib
import subprocess
import sys

import pytest

from yogadl.errors import MissingDependencyError

FRAMEWORKS = {
    "tensorflow": ("tensorflow", "pip install 'yogadl[tensorflow]'"),
    "torch": ("torch", "pip install 'yogadl[torch]'"),
    "jax": ("jax", "pip install 'yogadl[jax]'"),
    "keras": ("keras", "pip install 'yogadl[keras]'"),
    "grain": ("grain", "pip install 'yogadl[grain]'"),
    "ray": ("ray", "pip install 'yogadl[ray]'"),
    "arrays": ("pyarrow", "tables are read through Arrow: pip install pyarrow"),
}


@pytest.mark.parametrize(("adapter", "package", "says"), [(name, *rest) for name, rest in FRAMEWORKS.items()])
def test_without_its_framework_an_adapter_says_what_to_install(monkeypatch, adapter, package, says):
    name = f"yogadl.adapters.{adapter}"
    for module in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError) as caught:
        importlib.import_module(name)
    assert says in str(caught.value)


def test_yogadl_alone_loads_none():
    packages = {package for package, _ in FRAMEWORKS.values()}
    code = f"import sys, yogadl, yogadl.storage, yogadl.adapters; print(*{packages} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
