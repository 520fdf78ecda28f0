"""verify, rm, undelete and prune: what they do, and what they say of it."""

import shlex
import sys
import time
from pathlib import Path

import pytest
from cli_files import damage_part, tree_of
from command import Terminal
from inside import set_constants

import yogadl
import yogadl.cli._output as output
from yogadl.cli import main


def test_verify_says_what_was_sound(run, squares):
    ended = run("verify", "squares", "1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("squares 1 is sound: 11 records, ")


def test_verify_names_the_damaged_field_and_records(run, squares, root):
    part = damage_part(root, "more/texts")
    ended = run("verify", "more/texts", "2024-05")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith("yogadl: 'more/texts' version '2024-05': field 'text', records 0 to 1: ")
    assert part in ended.err


def test_verify_all_goes_on_after_damage(run, squares, root):
    damage_part(root, "more/texts")
    ended = run("verify", "--all")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.out.count("is sound") == 2
    assert ended.out.endswith("3 versions checked, 1 damaged.\n")


def test_verify_all_of_one_dataset(run, squares, root):
    damage_part(root, "more/texts")
    ended = run("verify", "squares", "--all").ends(0)
    assert ended.out.endswith("2 versions checked, 0 damaged.\n")
    assert run("verify", "cubes", "--all").code == 1


def test_verify_of_an_empty_storage_is_no_error(run, root):
    root.mkdir()
    assert run("verify", "--all").out == "0 versions checked, 0 damaged.\n"


def test_verify_as_json(run, squares, root):
    damage_part(root, "more/texts")
    ended = run("verify", "--all", "--json").ends(1)
    damaged, sound, _ = ended.json["versions"]
    assert list(damaged) == list(sound)
    assert (damaged["is_sound"], damaged["records"], sound["is_sound"], sound["records"]) == (
        *(False, None),
        *(True, 11),
    )
    assert "field 'text'" in damaged["error"]
    assert sound["error"] is None


def test_verify_of_a_damaged_manifest_is_damage(run, squares, root):
    (root / "squares/versions/1.json").write_text("{")
    ended = run("verify", "--all").ends(1)
    assert ended.out.endswith("3 versions checked, 1 damaged.\n")


def test_a_version_that_goes_while_all_are_checked_is_no_damage(run, squares, monkeypatch):
    verify = type(squares).verify

    def delete_then_verify(self, dataset_id, version, **options):
        if version == "1":
            self.delete(dataset_id, version)
        return verify(self, dataset_id, version, **options)

    monkeypatch.setattr(type(squares), "verify", delete_then_verify)
    ended = run("verify", "--all")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith("2 versions checked, 0 damaged.\n")


@pytest.mark.parametrize(("delay_s", "is_shown"), [(0.0, True), (1000.0, False)])
@pytest.mark.parametrize(
    ("words", "title"),
    [
        (["verify", "--all"], "verifying:"),
        (["bench", "squares", "1", "--seconds", "0.1"], "measuring:"),
        (["prune", "--grace", "0"], "pruning:"),
    ],
    ids=["verify", "bench", "prune"],
)
def test_the_bar_is_for_what_takes_long(words, title, delay_s, is_shown, squares, root, monkeypatch):
    terminal = Terminal()
    set_constants(monkeypatch, OUTPUT_DELAY_S=delay_s)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([*words, "-s", str(root)]) == 0
    assert (title in terminal.getvalue()) == is_shown
    assert terminal.getvalue().rpartition("\r")[2].strip() == ""  # nothing is left of it


def test_a_bar_of_seconds_that_sum_up_to_a_rounding_error_more_ends_at_its_end(monkeypatch):
    terminal = Terminal()
    set_constants(monkeypatch, OUTPUT_DELAY_S=0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.Bar("measuring", 0.6, "s") as bar:  # 0.1 + 0.2 + 0.3 is more than that
        for done in (0.1, 0.2, 0.3):
            time.sleep(0.15)  # it is drawn ten times a second at most
            bar.add(done)
    assert "100%" in terminal.getvalue()


def test_the_bar_is_for_terminals(run, squares, monkeypatch):
    set_constants(monkeypatch, OUTPUT_DELAY_S=0.0)
    assert run("verify", "--all").err == ""


def test_rm_says_how_to_get_it_back(yoga, run, squares):
    ended = run("rm", "squares", "1").ends(0)
    assert squares.versions("squares") == ["2"]
    command = shlex.split(ended.out.splitlines()[-1])
    assert command[:2] == ["yogadl", "undelete"]
    ended = yoga(*command[1:]).ends(0)
    assert ended.out.startswith("squares 1 is back: 11 records, built ")
    assert squares.versions("squares") == ["1", "2"]


def test_the_way_back_can_be_pasted_whatever_the_names(yoga, tmp_path):
    storage = yogadl.open_storage(tmp_path / "it's; a folder")
    storage.submit([1], "a dataset", "1 $HOME")
    ended = yoga("rm", "a dataset", "1 $HOME", "-s", Path(storage.location))
    assert yoga(*shlex.split(ended.out.splitlines()[-1])[1:]).code == 0
    assert storage.versions("a dataset") == ["1 $HOME"]


def test_rm_of_a_damaged_version(run, squares, root):
    (root / "squares/versions/1.json").write_text("{")
    assert run("rm", "squares", "1").code == 0
    assert squares.versions("squares") == ["2"]


def files_of(root):
    """All but the locks: asking whether one is held touches it, with older versions of filelock."""
    return {path: state for path, state in tree_of(root).items() if path.suffix != ".lock"}


def test_prune_keeps_what_is_young(run, squares, root):
    run("rm", "squares", "2")
    before = files_of(root)
    ended = run("prune")
    assert ended.out == "No file to remove is older than 30 days.\n"
    assert files_of(root) == before


def test_prune_without_grace_frees_the_disk(run, squares, root):
    run("rm", "squares", "2")
    before = files_of(root)
    dry = run("prune", "--grace", "0", "--dry-run")
    assert files_of(root) == before
    document = run("prune", "--grace", "0", "--dry-run", "--json").json
    assert files_of(root) == before
    assert dry.out.splitlines()[:-1] == [f"  {name}" for name in document["files"]]
    assert dry.out.splitlines()[-1].startswith(f"Would remove {len(document['files'])} files, ")
    sizes = [(root / name).stat().st_size for name in document["files"]]
    assert document["size_bytes"] == sum(sizes)
    ended = run("prune", "--grace", "0")
    assert ended.out.startswith(f"Removed {len(sizes)} files, ")
    assert not any((root / name).exists() for name in document["files"])
    assert run("undelete", "squares", "2").code == 1
    assert run("verify", "--all").code == 0


def test_prune_as_json_has_stable_keys(run, squares, root):
    document = run("prune", "--grace", "0.5", "--json").json
    assert document == {
        "storage": str(root),
        "is_dry_run": False,
        "grace_s": 43_200.0,
        "files": [],
        "size_bytes": 0,
    }
