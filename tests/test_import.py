"""What `import yogadl` costs, and who imports what."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import yogadl

HEAVY = {
    *["lmdb", "filelock", "tqdm", "cloudpickle", "xxhash"],
    *["tensorflow", "torch", "jax", "grain", "keras", "ray", "boto3", "google"],
}
PACKAGE = Path(yogadl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def test_importing_yogadl_loads_nothing_heavy(tmp_path):
    # -P and an empty folder: the installed package, and no other of the same name
    code = "import sys, yogadl; print(*sorted(name for name in sys.modules if '.' not in name))"
    child = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(child.stdout.split()) & HEAVY == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_imports_the_face(path):
    """`import yogadl` inside yogadl is how cycles begin: import the module that is needed instead."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert "yogadl" not in [alias.name for alias in node.names], f"{path}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom) and node.module == "yogadl":
            # `from yogadl import errors` loads a module; `from yogadl import DataRef` goes up to the face
            for alias in node.names:
                module = PACKAGE / alias.name
                is_module = module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()
                assert is_module, f"{path}:{node.lineno} imports {alias.name} from the face"


def test_reading_a_cache_loads_no_lmdb(tmp_path):
    yogadl.open_storage(tmp_path).submit({"x": np.arange(9)}, "d", "1")
    code = (
        "import sys, yogadl;"
        f"ref = yogadl.open_storage({str(tmp_path)!r}).fetch('d', '1');"
        "assert len(list(ref.stream(shuffle=True).batch(4))) == 3;"
        "assert 'lmdb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
