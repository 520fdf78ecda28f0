"""A fetch from a bucket runs code of few files before the first byte of a part arrives."""

import http.client
from pathlib import Path

import numpy as np
import pytest
import urllib3
from places import Place
from walks import Walk, documented

import yogadl
from yogadl.storage import _catalogue


def test_a_fetch_goes_the_documented_way(
    any_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str) -> yogadl.Storage:
        return yogadl.open_storage(any_place.url, **any_place.options, mirror=tmp_path / name)

    for dataset_id in ("first", "second"):
        opened("writer").submit({"x": np.arange(10_000)}, dataset_id, "1")
    storage = opened("reader")
    storage.fetch("first", "1").gather([0])  # imports, and what is made once a process
    walk, parsed, before_the_answer = Walk(), [], []
    begin = http.client.HTTPResponse.begin
    read, read_manifest = urllib3.HTTPResponse.read, _catalogue.read_manifest

    def received(response: urllib3.HTTPResponse, *arguments: object, **options: object) -> bytes:
        content = read(response, *arguments, **options)  # type: ignore[arg-type]
        if content and "/parts/" in str(response.geturl()).replace("%2F", "/"):
            walk.is_on = False
        return content

    def answered(response: http.client.HTTPResponse) -> None:
        begin(response)
        before_the_answer.append(len(walk.modules))

    def parsing(content: bytes, *arguments: object) -> object:
        parsed.append(content)
        return read_manifest(content, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(http.client.HTTPResponse, "begin", answered)
    monkeypatch.setattr(urllib3.HTTPResponse, "read", received)
    monkeypatch.setattr(_catalogue, "read_manifest", parsing)
    with walk.watching():
        walk.is_on = True
        storage.fetch("second", "1")
    assert not walk.is_on
    assert len(parsed) == 1
    assert before_the_answer[0] <= 15, str(walk)
    expected = set(documented("A fetch from a bucket, to the first byte of a part"))
    assert {module.replace("gcs.py", "s3.py") for module in walk.modules} <= expected, str(walk)
