"""The command on a storage in a bucket: what it does on a folder."""

import json

import numpy as np
import pytest

import yogadl
from yogadl.cli import main


@pytest.fixture
def run(gcs_place, tmp_path, capsys, monkeypatch):
    """Run a command on a bucket, and return what it printed."""
    monkeypatch.chdir(tmp_path)
    where = ["-s", gcs_place.url, "--endpoint-url", gcs_place.options["endpoint_url"], "--anonymous"]

    def command(name, *words):
        capsys.readouterr()
        code = main([name, *words, *where, "--mirror", str(tmp_path / "mirror")])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return command


def test_a_version_is_built_looked_at_and_kept_in_order(run, gcs_place, tmp_path):
    (tmp_path / "source.py").write_text("def squares(count):\n    return [n * n for n in range(count)]\n")
    built = json.loads(run("build", "source.py:squares", "some/data", "1", "--arg", "count=101", "--json"))
    assert built["was_built"]
    assert built["storage"] == gcs_place.url
    assert [version["id"] for version in json.loads(run("ls", "--json"))["versions"]] == ["some/data"]
    assert json.loads(run("info", "some/data", "1", "--json"))["records"] == 101
    assert "4" in run("head", "some/data", "1", "-n", "3")
    assert json.loads(run("verify", "some/data", "1", "--json"))["versions"][0]["id"] == "some/data"
    run("export", "some/data", "1", str(tmp_path / "out"))
    assert np.load(tmp_path / "out" / "records.npy").tolist() == [n * n for n in range(101)]

    run("rm", "some/data", "1")
    assert json.loads(run("ls", "--json"))["versions"] == []
    run("undelete", "some/data", "1")
    run("rm", "some/data", "1")
    assert json.loads(run("prune", "--grace", "0", "--json"))["files"]
    storage = gcs_place.storage(mirror=tmp_path / "another")
    with pytest.raises(yogadl.errors.DatasetNotFoundError):
        storage.undelete("some/data", "1")
