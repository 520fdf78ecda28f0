"""The pages on buckets: Python runs, commands succeed, policies are JSON and name what is used."""

import json
import re
import shlex
import urllib.request
from pathlib import Path

import numpy as np
import pages
import pytest
from inside import set_constants
from places import gcs_place_at
from stores import KEY, SECRET

import yogadl
from yogadl.cli import main

DOCS = Path(__file__).parents[2] / "docs" / "howto"
PAGES = [(DOCS / name).read_text("utf-8") for name in ("s3.md", "buckets.md")]


@pytest.fixture
def bucket(moto_endpoint, monkeypatch, tmp_path):
    """The bucket that the page speaks of, found by boto3's own environment alone; and an empty folder."""
    import boto3

    for name, value in {
        "AWS_ENDPOINT_URL": moto_endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    urllib.request.urlopen(urllib.request.Request(f"{moto_endpoint}/moto-api/reset", method="POST")).close()
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    client.close()
    monkeypatch.chdir(tmp_path)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", "".join(PAGES), re.DOTALL)


@pytest.mark.usefixtures("bucket")
def test_the_python_of_the_pages_runs():
    names = {}
    for code in blocks("python"):
        exec(compile(code, "s3.md, buckets.md", "exec"), names)
    assert len(names["ref"]) == 1000


def test_the_python_of_the_page_on_google_cloud_storage_runs(gcs_endpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_endpoint)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    place = gcs_place_at(gcs_endpoint)
    names = pages.run(
        "howto/gcs.md",
        [code.replace("gs://bucket/caches", place.url) for code in pages.blocks("howto/gcs.md")],
    )
    assert len(names["ref"]) == 1000


@pytest.mark.usefixtures("bucket")
def test_the_commands_of_the_pages_succeed(capsys):
    Path("data.py").write_text("def squares():\n    return [n**2 for n in range(1000)]\n")
    assert main(["build", "data.py:squares", "squares", "1", "-s", "caches"]) == 0
    commands = re.findall(r"^\$ yogadl (.*)", "".join(blocks("console")), re.MULTILINE)
    assert {shlex.split(command)[0] for command in commands} == {"push", "pull", "doctor"}
    for command in commands:
        assert main(shlex.split(command)) == 0, capsys.readouterr().out
    assert main(["verify", "squares", "1", "-s", "copies"]) == 0


@pytest.mark.usefixtures("bucket")
def test_the_plan_of_the_page_on_data_that_is_far_away(capsys, monkeypatch):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    images = np.zeros((1024, 64, 64), np.uint8)
    yogadl.open_storage("s3://bucket/caches", mirror=None).submit({"image": images}, "images", "1")
    page = (DOCS / "bigger-than-disk.md").read_text("utf-8")
    [command] = re.findall(r"^\$ yogadl (.*)", page, re.MULTILINE)
    assert main([*shlex.split(command), "--mirror", "mirror"]) == 0
    printed = capsys.readouterr().out
    assert "1,024 records, of which a process reads one in 512" in printed
    assert re.search(r"^ranges +2 +20,000 +8\.2 kB +<\$0\.01$", printed, re.MULTILINE), printed


def test_the_policies_allow_what_is_done_and_nothing_else():
    reader, builder = (
        {action for statement in json.loads(policy)["Statement"] for action in actions(statement)}
        for policy in blocks("json")
    )
    assert reader == {"s3:ListBucket", "s3:GetObject"}
    assert builder == reader | {"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}


def actions(statement):
    found = statement["Action"]
    return [found] if isinstance(found, str) else list(found)
