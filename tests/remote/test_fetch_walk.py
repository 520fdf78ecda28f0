"""A fetch from a bucket runs code of few files before the first byte of a part arrives."""

import http.client

import numpy as np
from inside import PartialFile, _catalogue
from walks import Walk, documented


def test_a_fetch_goes_the_documented_way(either_place, tmp_path, monkeypatch):
    def opened(name):
        return either_place.storage(mirror=tmp_path / name)

    for dataset_id in ("first", "second"):
        opened("writer").submit({"x": np.arange(10_000)}, dataset_id, "1")
    storage = opened("reader")
    storage.fetch("first", "1").gather([0])  # imports, and what is made once a process
    walk, parsed, before_the_answer = Walk(), [], []
    begin = http.client.HTTPResponse.begin
    write, read_manifest = PartialFile.write, _catalogue.read_manifest

    def received(file, *arguments):
        walk.is_on = False
        return write(file, *arguments)

    def answered(response):
        begin(response)
        before_the_answer.append(len(walk.modules))

    def parsing(content, *arguments):
        parsed.append(content)
        return read_manifest(content, *arguments)

    monkeypatch.setattr(http.client.HTTPResponse, "begin", answered)
    monkeypatch.setattr(PartialFile, "write", received)
    monkeypatch.setattr(_catalogue, "read_manifest", parsing)
    with walk.watching():
        walk.is_on = True
        storage.fetch("second", "1")
    assert not walk.is_on
    assert len(parsed) == 1
    assert 0 < before_the_answer[0] <= 15, str(walk)
    expected = set(documented("A fetch from a bucket, to the first byte of a part"))
    assert {module.replace("/gcs", "/s3") for module in walk.modules} <= expected, str(walk)
