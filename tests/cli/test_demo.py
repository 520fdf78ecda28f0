"""The demo, and the command that runs it: what they print, and how they end."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from inside import _demo

import yogadl
from yogadl.cli import main

RECORDS = 1_009


def run_demo(folder, *options):
    return main(["demo", "--dir", str(folder), "--records", str(RECORDS), *options])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that has the demo's cache already."""
    folder = tmp_path_factory.mktemp("demo")
    assert run_demo(folder) == 0
    return folder


def test_the_demo_builds_reads_and_ends_well(tmp_path, capsys):
    assert run_demo(tmp_path) == 0
    out, err = capsys.readouterr()
    assert "Built in" in out
    assert out.count("each exactly once") == 3
    assert "NOT" not in out
    assert err == ""  # no bar is drawn into a file


@pytest.fixture(scope="module")
def again(folder):
    """What the second run says."""
    (manifest,) = folder.rglob("versions/*.json")
    before = manifest.read_bytes()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert run_demo(folder) == 0
    assert (err.getvalue(), manifest.read_bytes()) == ("", before)
    return out.getvalue()


def test_the_second_run_says_that_the_cache_was_there_in_80_columns(folder, again):
    assert "It was there already, built " in again
    assert "Built in" not in again
    assert max(len(line) for line in again.splitlines() if str(folder) not in line) <= 80


def test_the_snippet_works_when_pasted(again):
    snippet = [line.strip() for line in again.splitlines() if line.startswith("    ")]
    snippet = snippet[snippet.index("import yogadl") :][:6]
    command = [sys.executable, "-P", "-W", "error", "-c", "\n".join(snippet)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.stderr == ""
    assert "'position': 256" in child.stdout


def test_the_shards_shown_are_those_of_the_dataset(folder, again):
    ref = yogadl.open_storage(folder).fetch(_demo.DATASET, f"{_demo.EDITION}-{RECORDS}")
    for rank in range(4):
        shard = ref.stream(shuffle=True, shuffle_seed=7, shard_rank=rank, num_shards=4)
        ids = [record["id"] for record in shard]
        assert re.search(rf"shard {rank} of 4 +{len(ids)} records +{' '.join(map(str, ids[:6]))} ", again)


@pytest.mark.parametrize("moved", [-32, 1, 32])
def test_a_resume_that_is_not_exact_fails_the_demo(folder, capsys, monkeypatch, moved):
    def load(text):
        cursor = json.loads(text)
        return cursor | {"position": cursor["position"] + moved}

    monkeypatch.setattr(_demo, "_load_cursor", load)
    assert run_demo(folder) == 1
    out = capsys.readouterr().out
    assert "NOT each exactly once" in out
    assert "FAILED" in out


def test_images_that_are_not_those_of_the_source_fail_the_demo(folder, capsys, monkeypatch):
    ramp = _demo.GeneratedImages(RECORDS)[0]["image"]
    monkeypatch.setattr(
        _demo.GeneratedImages, "__getitem__", lambda _, i: {"id": i, "image": ramp, "label": 0}
    )
    assert run_demo(folder) == 1
    assert "0 of 256 are equal" in capsys.readouterr().out


def test_the_images_are_the_same_for_ever(folder):
    """If this fails, raise `EDITION`: caches of the demo would hold what it no longer makes."""
    ref = yogadl.open_storage(folder).fetch(_demo.DATASET, f"{_demo.EDITION}-{RECORDS}")
    assert ref.fingerprint == "1e53ab2edbe75e9c0227d1fffab4bee4"


def test_the_default_folder_is_in_the_users_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert _demo._default_folder() == tmp_path / "cache" / "yogadl" / "demo"


def test_without_a_cache_folder_the_temporary_one_is_taken(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert _demo._default_folder() == tmp_path / f"yogadl-demo-{os.getuid()}"


def test_an_error_of_ours_is_one_line_and_exit_code_1(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run_demo(tmp_path / "file") == 1
    err = capsys.readouterr().err
    assert err == f"yogadl: {tmp_path / 'file'} is a file; give the path of a folder for caches\n"


def test_the_installed_command_is_this_one():
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert 'yogadl = "yogadl.cli:main"' in pyproject
