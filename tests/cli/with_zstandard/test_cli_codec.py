"""Compression on the command line."""

import json

import pytest
from inside import size_in_words as size

CODE = """
def texts():
    return [{"text": f"record {number} of the shard " * 20, "label": number} for number in range(300)]
"""


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(CODE)
    return f"{path}:texts"


def codecs(yoga, root, version):
    document = json.loads(yoga("info", "d", version, "-s", root, "--json").out)
    return {field["name"]: field["codec"] for field in document["fields"]}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "raw"),
        (["--codec", "zstd"], "zstd"),
        (["--codec", "auto"], "zstd"),
        (["--codec", "zstd:9"], "zstd"),
        (["--codec", "none"], "raw"),
        (["--codec", "text=zstd:9", "--codec", "label=none"], "zstd"),
        (["--codec", "label=zstd"], "raw"),
    ],
)
def test_a_build_compresses(yoga, code, storage, root, given, text):
    assert yoga("build", code, "d", "1", *given, "-s", root).code == 0
    assert codecs(yoga, root, "1") == {"text": text, "label": "raw"}
    out = yoga("info", "d", "1", "-s", root).out
    assert ("codec  stored" in out) == (text == "zstd")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["gzip"], "'gzip' is not zstd, zstd:LEVEL, auto or none"),
        (["zstd:23"], "'23' is not a level of zstd"),
        (["zstd:x"], "'x' is not a level of zstd"),
        (["zstd", "--codec", "text=none"], "--codec is given once for all fields"),
    ],
)
def test_other_codecs_are_refused(yoga, code, root, given, says):
    ended = yoga("build", code, "d", "1", "--codec", *given, "-s", root)
    assert ended.code == 2
    assert says in ended.err


def test_tasks_compress(yoga, code, root):
    for task in ("1/2", "2/2"):
        assert yoga("build", code, "d", "1", "--codec", "zstd", "--task", task, "-s", root).code == 0
    assert yoga("build", code, "d", "1", "--codec", "zstd", "--commit", "-s", root).code == 0
    assert codecs(yoga, root, "1") == {"text": "zstd", "label": "raw"}


def test_an_append_goes_on_as_its_base_was_stored(yoga, code, storage, root):
    yoga("build", code, "d", "1", "--codec", "text=zstd", "-s", root)
    assert yoga("append", code, "d", "2", "1", "-s", root).code == 0
    assert codecs(yoga, root, "2") == {"text": "zstd", "label": "raw"}
    table = storage.fetch("d", "2")._records.table
    assert table.fields[0].codec.tolist() == [1, 1]
    assert yoga("append", code, "d", "3", "1", "--codec", "none", "-s", root).code == 0
    assert storage.fetch("d", "3")._records.table.fields[0].codec.tolist() == [1, 0]


def test_recompress(yoga, code, storage, root):
    yoga("build", code, "d", "1", "-s", root)
    ended = yoga("recompress", "d", "1", "2", "--codec", "zstd", "-s", root)
    assert ended.code == 0
    assert ended.out.startswith("Built d 2: ")
    assert codecs(yoga, root, "2")["text"] == "zstd"
    assert storage.info("d", "1").fingerprint == storage.info("d", "2").fingerprint
    ended = yoga("recompress", "d", "2", "2", "--codec", "text=none", "--json", "-s", root)
    assert json.loads(ended.out)["version"] == "2"
    assert codecs(yoga, root, "2")["text"] == "raw"
    assert yoga("recompress", "d", "1", "2", "-s", root).code == 2


def test_recompress_replaces_no_other_version_unless_asked(yoga, code, storage, root):
    storage.submit([{"x": n} for n in range(3)], "d", "precious")
    yoga("build", code, "d", "1", "-s", root)
    storage.tag("d", "best", "1")
    ended = yoga("recompress", "d", "1", "precious", "--codec", "zstd", "-s", root)
    assert ended.code == 1
    assert "--replace" in ended.err
    assert storage.info("d", "precious").records == 3
    assert yoga("recompress", "d", "best", "1", "--codec", "zstd", "-s", root).code == 0
    ended = yoga("recompress", "d", "1", "precious", "--codec", "none", "--replace", "-s", root)
    assert ended.code == 0
    assert storage.info("d", "precious").fingerprint == storage.info("d", "1").fingerprint


def test_recompress_in_place_says_what_it_was(yoga, code, storage, root):
    yoga("build", code, "d", "1", "-s", root)
    before = storage.info("d", "1").size_bytes
    ended = yoga("recompress", "d", "1", "1", "--codec", "zstd", "-s", root)
    assert storage.info("d", "1").size_bytes < before / 4
    assert ended.out.rstrip().endswith(f"from {size(before)}.")


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_info_of_fields_of_one_name(yoga, storage, root, codec):
    storage.submit(
        [{"a/b": "a text of some length " * 9, "a": {"b": n}} for n in range(100)], "d", "1", codec=codec
    )
    document = json.loads(yoga("info", "d", "1", "-s", root, "--json").out)
    assert [field["raw_bytes"] for field in document["fields"]] == [19_800, 800]
    ended = yoga("info", "d", "1", "-s", root)
    assert ended.code == 0
    assert ended.out.split().count("800") == (1 if codec is None else 2)


def test_info_says_how_a_version_was_compressed(yoga, code, root):
    yoga("build", code, "d", "1", "--codec", "text=zstd:9", "-s", root)
    assert "codec        text=zstd:9\n" in yoga("info", "d", "1", "-s", root).out
    yoga("recompress", "d", "1", "2", "--codec", "zstd", "-s", root)
    assert "(codec: text=zstd:9 -> zstd)" in yoga("explain", "d", "1", "2", "-s", root).out


def test_the_codec_may_be_the_same(yoga, code, root):
    yoga("build", code, "d", "1", "--codec", "text=zstd:9", "-s", root)
    assert yoga("append", code, "d", "2", "1", "--codec", "same", "-s", root).code == 0
    assert yoga("recompress", "d", "2", "3", "--codec", "same", "-s", root).code == 0
    for version in "23":
        assert "codec        text=zstd:9\n" in yoga("info", "d", version, "-s", root).out
    ended = yoga("build", code, "d", "4", "--codec", "same", "-s", root)
    assert ended.code == 2
    assert "append and recompress" in ended.err
    assert yoga("append", code, "d", "5", "1", "--codec", "text=same", "-s", root).code == 2
