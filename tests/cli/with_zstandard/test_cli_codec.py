"""Compression on the command line."""

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


def codecs(run, version):
    document = run("info", "d", version, "--json").json
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
def test_a_build_compresses(run, code, storage, given, text):
    assert run("build", code, "d", "1", *given).code == 0
    assert codecs(run, "1") == {"text": text, "label": "raw"}
    out = run("info", "d", "1").out
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
def test_other_codecs_are_refused(run, code, given, says):
    run("build", code, "d", "1", "--codec", *given).ends(2, says)


def test_tasks_compress(run, code):
    for task in ("1/2", "2/2"):
        assert run("build", code, "d", "1", "--codec", "zstd", "--task", task).code == 0
    assert run("build", code, "d", "1", "--codec", "zstd", "--commit").code == 0
    assert codecs(run, "1") == {"text": "zstd", "label": "raw"}


def test_an_append_goes_on_as_its_base_was_stored(run, code, storage):
    run("build", code, "d", "1", "--codec", "text=zstd")
    assert run("append", code, "d", "2", "1").code == 0
    assert codecs(run, "2") == {"text": "zstd", "label": "raw"}
    table = storage.fetch("d", "2")._records.table
    assert table.fields[0].codec.tolist() == [1, 1]
    assert run("append", code, "d", "3", "1", "--codec", "none").code == 0
    assert storage.fetch("d", "3")._records.table.fields[0].codec.tolist() == [1, 0]


def test_recompress(run, code, storage):
    run("build", code, "d", "1")
    ended = run("recompress", "d", "1", "2", "--codec", "zstd").ends(0)
    assert ended.out.startswith("Built d 2: ")
    assert codecs(run, "2")["text"] == "zstd"
    assert storage.info("d", "1").fingerprint == storage.info("d", "2").fingerprint
    ended = run("recompress", "d", "2", "2", "--codec", "text=none", "--json")
    assert ended.json["version"] == "2"
    assert codecs(run, "2")["text"] == "raw"
    assert run("recompress", "d", "1", "2").code == 2


def test_recompress_replaces_no_other_version_unless_asked(run, code, storage):
    storage.submit([{"x": n} for n in range(3)], "d", "precious")
    run("build", code, "d", "1")
    storage.tag("d", "best", "1")
    run("recompress", "d", "1", "precious", "--codec", "zstd").ends(1, "--replace")
    assert storage.info("d", "precious").records == 3
    assert run("recompress", "d", "best", "1", "--codec", "zstd").code == 0
    run("recompress", "d", "1", "precious", "--codec", "none", "--replace").ends(0)
    assert storage.info("d", "precious").fingerprint == storage.info("d", "1").fingerprint


def test_recompress_in_place_says_what_it_was(run, code, storage):
    run("build", code, "d", "1")
    before = storage.info("d", "1").size_bytes
    ended = run("recompress", "d", "1", "1", "--codec", "zstd")
    assert storage.info("d", "1").size_bytes < before / 4
    assert ended.out.rstrip().endswith(f"from {size(before)}.")


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_info_of_fields_of_one_name(run, storage, codec):
    storage.submit(
        [{"a/b": "a text of some length " * 9, "a": {"b": n}} for n in range(100)], "d", "1", codec=codec
    )
    document = run("info", "d", "1", "--json").json
    assert [field["raw_bytes"] for field in document["fields"]] == [19_800, 800]
    ended = run("info", "d", "1").ends(0)
    assert ended.out.split().count("800") == (1 if codec is None else 2)


def test_info_says_how_a_version_was_compressed(run, code):
    run("build", code, "d", "1", "--codec", "text=zstd:9")
    assert "codec        text=zstd:9\n" in run("info", "d", "1").out
    run("recompress", "d", "1", "2", "--codec", "zstd")
    assert "(codec: text=zstd:9 -> zstd)" in run("explain", "d", "1", "2").out


def test_the_codec_may_be_the_same(run, code):
    run("build", code, "d", "1", "--codec", "text=zstd:9")
    assert run("append", code, "d", "2", "1", "--codec", "same").code == 0
    assert run("recompress", "d", "2", "3", "--codec", "same").code == 0
    for version in "23":
        assert "codec        text=zstd:9\n" in run("info", "d", version).out
    run("build", code, "d", "4", "--codec", "same").ends(2, "append and recompress")
    assert run("append", code, "d", "5", "1", "--codec", "text=same").code == 2
