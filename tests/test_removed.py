"""Names of yogadl 0.1.4 that are no more: an error that says what to write, and a page that lists them."""

import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import yogadl
from yogadl.errors import RemovedError

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "migrating.md"
# All that 0.1.4 had: the public names of its modules.
OLD = {
    "yogadl": [
        "DataRef", "GeneratorFromKeys", "LmdbAccess", "Storage", "Stream", "Submittable",
        "non_sequential_shard", "rw_coordinator", "sequential_shard", "serialize_generator_to_lmdb",
        "shard_keys", "shuffle_keys",
    ],
    "yogadl.dataref": ["LMDBDataRef"],
    "yogadl.storage": [
        "BaseCloudConfigurations", "BaseCloudStorage", "GCSConfigurations", "GCSStorage", "LFSConfigurations",
        "LFSStorage", "S3Configurations", "S3Storage",
    ],
}  # fmt: skip
NAMES = [(module, name) for module, names in OLD.items() for name in names]
OF_TENSORFLOW = [
    "read_tf_dataset",
    "read_tf_dataset_eager_mode",
    "read_tf_dataset_graph_mode",
    "serialize_tf_dataset_to_lmdb",
]
NAME = r"^\| `([\w.]+(?:\(\w+=\.\.\.\))?)` \|"
LISTED = set(re.findall(NAME, PAGE.read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_of_014_is_there_or_says_what_to_write(module, name):
    found = importlib.import_module(module)
    if f"{module}.{name}" in LISTED:
        with pytest.raises(RemovedError, match=rf"{module}\.{name} was removed after yogadl 0.1.4: \w+"):
            getattr(found, name)
    else:
        assert getattr(found, name) is not None


def test_an_import_says_the_same():
    with pytest.raises(ImportError, match="no server is needed"):
        from yogadl import rw_coordinator  # noqa: F401
    with pytest.raises(ImportError, match="no server is needed"):
        import yogadl.rw_coordinator  # noqa: F401
    with pytest.raises(ImportError, match=r"open_storage\('s3://bucket/prefix'\)"):
        from yogadl.storage import BaseCloudStorage  # noqa: F401


def test_a_name_that_never_was_is_an_attribute_error():
    assert not hasattr(yogadl, "shard_key")
    with pytest.raises(AttributeError, match="module 'yogadl' has no attribute 'shard_key'"):
        yogadl.shard_key  # noqa: B018


def test_a_reference_is_of_the_old_class_which_makes_none(storage, tmp_path):
    storage.submit([1, 2, 3], "d", "1")
    ref = storage.fetch("d", "1")
    assert isinstance(ref, yogadl.dataref.LMDBDataRef)
    with pytest.raises(RemovedError, match="yogadl import-014"):
        yogadl.dataref.LMDBDataRef(cache_filepath=tmp_path)
    for path in (tmp_path, str(tmp_path)):
        with pytest.raises(RemovedError, match="yogadl import-014"):
            yogadl.dataref.LMDBDataRef(path)
    assert list(pickle.loads(pickle.dumps(ref))) == [1, 2, 3]


def test_the_page_lists_no_other():
    known = {f"{module}.{name}" for module, name in NAMES}
    known |= {f"yogadl.tensorflow.{name}" for name in OF_TENSORFLOW}
    assert known | {"yogadl.dataref.LMDBDataRef(cache_filepath=...)"} >= LISTED
    assert {f"yogadl.tensorflow.{name}" for name in OF_TENSORFLOW} <= LISTED


def test_looking_for_names_loads_nothing_of_it():
    code = "import sys, yogadl; dir(yogadl); assert 'yogadl._removed' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
