"""The table of words in docs/howto/streams.md is that of the signatures, which tests/public_names has."""

import ast
import re
from pathlib import Path

import pytest
from pages import ROOT

import yogadl

SIGNATURES = Path(__file__).parents[1] / "public_names"
ADAPTERS = Path(yogadl.__file__).parent / "adapters"
# Of each column: the file of tests/public_names, and the functions.
COLUMNS = (
    ("yogadl", "RecordStream.batch", "Loader.prefetch"),
    ("yogadl.adapters.tensorflow", "make_tf_dataset"),
    ("yogadl.adapters.torch", "make_dataloader"),
    ("yogadl.adapters.lightning", "DataModule.__init__"),
    ("yogadl.adapters.jax", "make_jax_iterator"),
    ("yogadl.adapters.grain", "make_dataloader"),
    ("yogadl.adapters.keras", "PyDataset.__init__"),
)
# Arguments that have to be in the table wherever a function has them.
WORDS = {"n", "batch_size", "drop_remainder", "epochs", "workers", "num_workers", "worker_count", "prefetch"}
LIGHTNINGS = {"epochs"}  # what the trainer says in the place of an option of `torch.make_dataloader`


def arguments(module: str, function: str) -> dict[str, str | None]:
    """Return the arguments of a public function with the text of each default; None where there is none."""
    holder, _, name = function.rpartition(".")
    text = (SIGNATURES / f"{module}.txt").read_text("utf-8")
    if holder:
        text = re.search(rf"^class {holder}\(.*\n((?:    .*\n)+)", text, re.M)[1]
    given = ast.parse(f"def f{re.search(rf'^ *{name}([(].*[)])$', text, re.M)[1]}: ...").body[0].args
    ordered = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(ordered) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    every = zip([*ordered, *given.kwonlyargs], defaults, strict=True)
    found = {one.arg: None if default is None else ast.unparse(default) for one, default in every}
    if function == "DataModule.__init__":  # whose options are those of the loader
        options = arguments("yogadl.adapters.torch", "make_dataloader")
        found |= {name: default for name, default in options.items() if name not in LIGHTNINGS}
    return found


def attributes(path: Path, name: str) -> set[str]:
    """Return the annotated names of a class in a file, or the attributes of the variable in `self.name`."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    classes = [node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
    annotated = {item.target.id for body in classes for item in body if isinstance(item, ast.AnnAssign)}
    of_self = [
        node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
    ]
    return annotated | {node.attr for node in of_self if node.value.attr == name}


def columns() -> list[dict[str, list[str]]]:
    """Return for each column but the first the code in each row's cell, by the word of the row."""
    page = (ROOT / "docs" / "howto" / "streams.md").read_text("utf-8")
    table = re.search(r"^## What each framework calls it\n[^|]*((?:\|.*\n)+)", page, re.M)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == ["batch_size", "drop_remainder", "epochs", "workers", "prefetch"]
    return [
        {row[0]: re.findall(r"`([^`]+)`", row[number]) for row in rows} for number in range(1, len(rows[0]))
    ]


@pytest.mark.parametrize("number", range(len(COLUMNS)), ids=[column[0] for column in COLUMNS])
def test_the_words_of_an_adapter_are_its_arguments_and_all_of_them(number):
    module, *functions = COLUMNS[number]
    there = {name: default for one in functions for name, default in arguments(module, one).items()}
    loader_options = attributes(ADAPTERS / "torch" / "_loader.py", "LoaderOptions")
    said = {code for codes in columns()[number].values() for code in codes}
    options = {name for name in said if module.endswith(("torch", "lightning")) and name in loader_options}
    written = {name if default is None else f"{name}={default}" for name, default in there.items()}
    assert said - options - written == set()
    assert (WORDS & there.keys()) - {code.partition("=")[0] for code in said} == set()


def test_the_words_of_trainers_are_read_by_the_adapter_or_by_the_trainer():
    said = {code for codes in columns()[len(COLUMNS)].values() for code in codes}
    read = attributes(ADAPTERS / "transformers.py", "args")
    assert said - read == {
        "per_device_train_batch_size",
        "num_train_epochs",
    }  # which the Trainer hands on itself


def test_a_size_can_be_left_out_everywhere_and_epochs_are_one():
    for module, *functions in COLUMNS[1:]:
        there = arguments(module, functions[0])
        assert there["batch_size"] == "None", module
        assert module.endswith("keras") or there.get("epochs", "1") == "1", module
