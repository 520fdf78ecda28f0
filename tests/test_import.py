"""What `import yogadl` costs, and who imports what."""

import ast
import re
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
# What builds, and what buckets need.
BUILDS = (
    r"lmdb|filelock|tqdm|cloudpickle|logging|secrets|multiprocessing|concurrent|yogadl\._provenance"
    r"|yogadl\._core\.(advice|columns|forms|infer|json_value)|yogadl\._workers|yogadl\._stream\.(worker|workers|pool)"
    r"|yogadl\.storage\._(builds|objects|remote|keeping|copy|leases\.(?!policy)|catalogue\.(tags|log|copy|export))"
)
PACKAGE = Path(yogadl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def in_a_child(code, folder):
    """Run code with the installed package, and no other of the same name."""
    command = [sys.executable, "-P", "-W", "error", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def loaded_by(code, folder):
    """Return the modules that are loaded once code has run."""
    child = in_a_child(f"{code}\nimport sys; print(*sys.modules)", folder)
    assert child.returncode == 0, child.stderr
    return set(child.stdout.split())


def test_importing_yogadl_loads_nothing_heavy(tmp_path):
    assert loaded_by("import yogadl", tmp_path) & HEAVY == set()


def test_no_module_imports_the_face():
    """`import yogadl` inside yogadl is how cycles begin: import the module that is needed instead."""
    assert len(MODULES) > 100
    texts = {path: path.read_text("utf-8") for path in MODULES}
    pattern = r"import .*\byogadl\b|from yogadl import"
    candidates = [path for path in MODULES if re.search(pattern, texts[path])]
    assert candidates
    found = [(path, node) for path in candidates for node in ast.walk(ast.parse(texts[path]))]
    for path, node in found:
        if isinstance(node, ast.Import):
            assert "yogadl" not in [alias.name for alias in node.names], f"{path}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom) and node.module == "yogadl":
            # `from yogadl import errors` loads a module; `from yogadl import DataRef` goes up to the face
            for alias in node.names:
                module = PACKAGE / alias.name
                is_module = module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()
                assert is_module, f"{path}:{node.lineno} imports {alias.name} from the face"


def test_reading_a_cache_loads_nothing_that_only_building_needs(tmp_path):
    yogadl.open_storage(tmp_path).submit({"x": np.arange(9)}, "d", "1")
    code = (
        "import yogadl;"
        f"ref = yogadl.open_storage({str(tmp_path)!r}).fetch('d', '1');"
        "assert len(list(ref.stream(shuffle=True).batch(4))) == 3"
    )
    loaded = loaded_by(code, tmp_path) - loaded_by("import numpy", tmp_path)
    assert loaded & {"yogadl._format.reader", "yogadl.storage._catalogue.catalogue"}
    assert not [name for name in loaded if re.match(BUILDS, name)]


def test_a_hit_of_a_cacheable_function_loads_provenance_beyond_that_and_nothing_else_of_builds(tmp_path):
    module = tmp_path / "builder.py"
    module.write_text(
        "import sys, numpy, yogadl\n"
        f"storage = yogadl.open_storage({str(tmp_path / 'caches')!r})\n"
        "@storage.cacheable('d', '1')\n"
        "def build():\n"
        "    return {'x': numpy.arange(9)}\n"
        "assert len(list(build().stream(shuffle=True).batch(4))) == 3\n"
        "print(*sys.modules)\n"
    )
    for _ in range(2):  # the second is a hit
        child = subprocess.run([sys.executable, module], capture_output=True, text=True, check=True)
    loaded = set(child.stdout.split())
    ours = {"yogadl.storage._builds", "yogadl.storage._hits.cacheable", "yogadl.storage._builds.options"}
    assert ours < loaded
    others = [
        name for name in loaded - ours if re.match(BUILDS, name) and name.startswith(("lmdb", "yogadl"))
    ]
    assert all(name.startswith("yogadl._provenance") for name in others), others
    assert "yogadl._provenance.difference" not in loaded


def test_every_room_is_there_after_importing_yogadl(tmp_path):
    code = (
        "import yogadl;"
        "assert yogadl.storage.open_storage is yogadl.open_storage;"
        "assert yogadl.dataref.LMDBDataRef is yogadl.RecordsRef;"
        "assert yogadl.adapters.sql.__name__ == 'yogadl.adapters.sql'"
    )
    loaded_by(code, tmp_path)


@pytest.mark.parametrize("name", ["tensorflow", "adapters.tensorflow", "adapters.torch", "adapters.grain",
                                  "adapters.jax", "adapters.keras", "adapters.tfds", "testing"])  # fmt: skip
def test_what_needs_a_package_is_there_or_names_the_package(name, tmp_path):
    child = in_a_child(f"import yogadl; print(yogadl.{name}.__name__)", tmp_path)
    if child.returncode:
        assert "pip install" in child.stderr or "No module named" in child.stderr
        assert "AttributeError" not in child.stderr
    else:
        assert child.stdout.strip() == f"yogadl.{name}"


def test_every_adapter_is_an_attribute():
    public = {path.stem for path in (PACKAGE / "adapters").glob("[!_]*")}
    assert public == yogadl.adapters._ADAPTERS
    with pytest.raises(AttributeError, match=r"'yogadl\.adapters' has no attribute 'caffe'"):
        _ = yogadl.adapters.caffe


def test_dir_lists_public_names_only():
    _ = yogadl.storage.S3Storage  # what was used once is listed as before
    assert set(dir(yogadl)) == {*yogadl.__all__, "adapters", "dataref", "tensorflow"}
    assert set(dir(yogadl.storage)) == set(yogadl.storage.__all__)


def test_looking_at_all_names_needs_no_framework(tmp_path):
    code = (
        "import inspect, yogadl;"
        "names = dict(inspect.getmembers(yogadl)) | dict(inspect.getmembers(yogadl.adapters));"
        "assert {'Blocks', 'adapters', 'dataref', 'open_storage', 'storage', 'tensorflow'} <= set(names)"
    )
    assert not loaded_by(code, tmp_path) & {"tensorflow", "torch", "jax", "grain", "keras", "pytest"}
