"""ls, info and head: what they show, for people and for scripts."""

import json
import re
from collections import namedtuple
from datetime import datetime

import numpy as np
import pytest
from cli_files import Bomb, tree_of
from inside import set_constants

import yogadl
from yogadl.storage import CacheStorage


def test_ls_lists_every_version(run, squares):
    lines = run("ls").out.splitlines()
    assert lines[0].split() == ["dataset", "version", "records", "size", "files", "built", "(UTC)"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["more/texts", "2024-05", "2"],
        ["squares", "1", "11"],
        ["squares", "2", "1,000"],
    ]
    assert max(map(len, lines)) <= 80


def test_ls_of_one_dataset(run, squares):
    document = run("ls", "squares", "--json").json
    assert [one["version"] for one in document["versions"]] == ["1", "2"]


def test_ls_of_nothing(yoga, run, root):
    root.mkdir()
    assert run("ls") == type(yoga("ls"))(0, "", f"yogadl: there are no datasets in {root}\n")
    nothing = {"storage": str(root), "versions": [], "unfinished": []}
    assert run("ls", "--json").json == nothing


class Broken:
    def __len__(self):
        return 1000

    def __getitem__(self, number):
        if number == 900:
            raise ConnectionResetError("gone")
        return {"row": np.full(100, number)}


def test_ls_says_what_a_failed_build_holds_and_prune_frees_just_that(run, squares, root):
    with pytest.raises(ConnectionResetError):
        squares.submit(Broken(), "squares", "3", build=yogadl.BuildOptions(part_bytes=100_000))
    (left,) = squares.unfinished()
    assert left.size_bytes > 100_000
    shown = run("ls", "squares")
    assert re.search(r"squares 3 is not finished: its builds use .* kB, last written .* UTC", shown.err)
    assert "`yogadl prune --unfinished` removes these files" in shown.err
    assert run("ls", "more/texts").err == ""
    document = run("ls", "--json").json
    (one,) = document["unfinished"]
    assert (one["id"], one["version"], one["size_bytes"]) == ("squares", "3", left.size_bytes)
    assert list(one) == ["id", "version", "size_bytes", "written"]
    before = set(tree_of(root))
    assert "Would remove" in run("prune", "--unfinished", "--dry-run").out
    assert set(tree_of(root)) == before
    freed = run("prune", "--unfinished", "--json").json
    assert (freed["size_bytes"], freed["grace_s"]) == (left.size_bytes, None)
    assert run("ls").err == ""
    assert run("prune", "--unfinished").out == ("Unfinished builds hold no files to remove.\n")
    assert run("prune", "--unfinished", "--grace", "1").code == 2
    assert run("verify", "--all").code == 0


def test_ls_has_stable_keys(run, squares):
    for tag in ("stable", "good"):
        squares.tag("squares", tag, "1")
    versions = run("ls", "--json").json["versions"]
    assert len(versions) == 3
    for one in versions:
        info = squares.info(one["id"], one["version"])
        assert one == {
            "id": info.id,
            "version": info.version,
            "records": info.records,
            "size_bytes": info.size_bytes,
            "parts": info.parts,
            "created": one["created"],
            "fingerprint": info.fingerprint,
            "digest": info.digest,
            "tags": ["good", "stable"] if one["version"] == "1" else [],
            "error": None,
            "shared_bytes": 0,
            "shared_with": [],
            "is_adopted": False,
        }
        assert one["created"].endswith("Z")
        assert datetime.fromisoformat(one["created"]).timestamp() == int(info.created)


def test_ls_has_a_column_for_tags_where_there_are_any(run, squares, root):
    for tag in ("stable", "good"):
        squares.tag("squares", tag, "1")
    lines = run("ls").out.splitlines()
    assert lines[0].endswith("  built (UTC)       tags")
    assert [line.endswith("  good, stable") for line in lines[1:]] == [False, True, False]
    (root / "squares/tags/good/0000000001.tag").write_text("{")
    ended = run("ls")
    assert (ended.code, len(ended.out.splitlines())) == (1, 4)
    assert "is damaged, so the tag 'good' names nothing" in ended.err


def test_ls_tells_a_damaged_manifest_and_lists_the_others(run, squares, root):
    (root / "squares/versions/1.json").write_text("{")
    ended = run("ls").ends(1)
    assert "squares     1        damaged" in ended.out
    assert "1,000" in ended.out
    assert ended.err.count("\n") == 1
    document = run("ls", "--json").json
    damaged = document["versions"][1]
    assert "is damaged" in damaged["error"]
    assert damaged["records"] is None


@pytest.mark.parametrize("created", ["NaN", "1e300", "-1e300", "-1"])
def test_a_time_that_can_be_none_is_told_as_unknown(created, run, squares, root):
    path = root / "squares/versions/1.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document).replace(str(document["created"]), created))
    for words in (["ls"], ["info", "squares", "1"]):
        assert run(*words).code == 0
        assert run(*words, "--json").json


def test_info_says_what_is_known(run, squares):
    out = run("info", "squares", "1").out
    info = squares.info("squares", "1")
    assert "records      11\n" in out
    assert f"fingerprint  {info.fingerprint}\n" in out
    assert f"digest       {info.digest}\n" in out
    assert "arguments    count=11\n" in out
    assert "test" in out.partition("from  ")[2].splitlines()[0]
    assert "number  int64         88 B\n" in out
    assert max(map(len, out.splitlines())) <= 80


def test_info_has_stable_keys(run, squares):
    document = run("info", "squares", "1", "--json").json
    assert list(document) == [
        *["storage", "id", "version", "records", "size_bytes", "parts", "created"],
        *["fingerprint", "digest", "fields", "spec", "builder", "earlier", "metadata"],
        *["is_adopted", "adopted"],
    ]
    assert document["fields"] == [
        {"name": name, "dtype": "int64", "shape": [], "codec": "raw", "stored_bytes": 88, "raw_bytes": 88}
        for name in ("number", "square")
    ]
    assert document["builder"]["arguments"] == {"count": "11"}
    assert datetime.fromisoformat(document["builder"]["started"]).tzinfo is not None


def test_info_shows_every_kind_of_shape(run, storage):
    record = {"fixed": np.zeros((3, 4)), "text": "a", "varies": np.zeros(2)}
    storage.submit([{**record, "varies": np.zeros(n)} for n in range(3)], "d", "1")
    out = run("info", "d", "1").out
    assert "fixed   float64  3 x 4   288 B\n" in out
    assert "varies  float64  varies  64 B\n" in out


def test_what_a_stranger_wrote_can_not_steer_the_terminal(run, storage, root):
    storage.submit([{"\x1b[2Jfield": "a\x1b]0;title\x07\u202e"}], "d", "1")
    path = root / "d/versions/1.json"
    document = json.loads(path.read_text())
    document["builder"]["function"] = "\x1b[2Jmake\u202e\n"
    path.write_text(json.dumps(document))
    for words in (["info", "d", "1"], ["head", "d", "1"]):
        ended = run(*words).ends(0)
        assert all(line.isprintable() for line in ended.out.splitlines())
        assert "field" in ended.out


def test_head_is_a_table(run, squares):
    ended = run("head", "squares", "1", "-n", "3").ends(0)
    assert ended.out == (
        "record  number  square\n"
        "     0       0       0\n"
        "     1       1       1\n"
        "     2       2       4\n"
    )  # fmt: skip
    assert ended.err == "yogadl: 3 records of 11; -n shows more\n"


def test_head_of_all_there_is_says_nothing_of_more(run, squares):
    ended = run("head", "squares", "1", "-n", "99")
    assert len(ended.out.splitlines()) == 1 + 11
    assert ended.err == ""


def test_head_reads_in_steps(run, squares, monkeypatch):
    whole = run("head", "squares", "2", "-n", "1000")
    set_constants(monkeypatch, HEAD_READ_BYTES=50)
    assert run("head", "squares", "2", "-n", "1000") == whole
    assert whole.out.splitlines()[-1].split() == ["999", "999"]


Point = namedtuple("Point", "x y")


WIDE = {f"field {n}": np.full((2, 3), n, np.uint8) for n in range(9)}
ESCAPES = {"line": "one\ntwo " * 20, "raw": b"\x00" + b"a" * 90, "more": "x" * 99}


@pytest.mark.parametrize(
    ("records", "columns", "lines"),
    [
        ([{"at": Point(1, 2.5), "all": [{"a": True}, (3,)]}], 80,
         [["record", "at/x", "at/y", "all/0/a", "all/1/0"], ["0", "1", "2.5", "True", "3"]]),
        ([7, 8], 80, [..., ["0", "7"], ["1", "8"]]),
        ([{"": 7}], 80, [["record", '""'], ["0", "7"]]),
        # Records too wide for a table are shown field by field.
        ([WIDE] * 2, 80,
         [["record 0"], *[...] * 8, ["field 8", "uint8[2x3] 8 to 8"], ["record 1"], *[...] * 9]),
        ([WIDE] * 2, 200, [...] * 3),
        # Text is cut shorter where that makes a table, and shown whole where it is short.
        ([{"text": "ä" * 50, "raw": b"\xff" * 50, "short": "abcdefghijkl", "n": 1}], 80,
         [..., ["0", "'ääääääääääää'...", r"50 bytes: b'\xff\xff\xff'...", "'abcdefghijkl'", "1"]]),
        ([{"whole": "a" * 24, "cut": "a" * 25, "long": "b" * 99}, {"whole": "", "cut": "", "long": ""}], 80,
         [..., ["0", repr("a" * 24), f"'{'a' * 12}'...", f"'{'b' * 12}'..."], ...]),
        ([ESCAPES], 80,
         [..., ["0", r"'one\ntwo one'...", r"91 bytes: b'\x00aaaaaaaa'...", "'xxxxxxxxxxxx'..."]]),
        # Large integers are exact.
        ([{"n": np.array([2**63 - 1, -(2**53) - 1]), "u": np.uint64(2**64 - 1)}], 80,
         [..., ["0", "int64[2] -9007199254740993 to 9223372036854775807", "18446744073709551615"]]),
    ],
    ids=["nested", "single", "empty key", "too wide", "wide enough", "cut", "whole", "escapes", "exact"],
)  # fmt: skip
def test_records_are_shown_as_a_table(run, storage, monkeypatch, records, columns, lines):
    monkeypatch.setenv("COLUMNS", str(columns))
    storage.submit(records, "d", "1")
    found = [re.split("  +", line.strip()) for line in run("head", "d", "1").out.splitlines()]
    assert [... if line is ... else cells for cells, line in zip(found, lines, strict=True)] == lines


def test_a_field_without_a_name_is_in_quotes_for_people_alone(run, storage):
    storage.submit([{"": 7}], "d", "1")
    assert run("info", "d", "1").out.splitlines()[-1].split() == ['""', "int64", "8", "B"]
    assert run("info", "d", "1", "--json").json["fields"][0]["name"] == ""
    assert run("head", "d", "1", "--json").json["head"][0][""]["value"] == 7


def test_text_with_escapes_is_cut_at_the_width_of_a_list(run, storage, monkeypatch):
    storage.submit([ESCAPES | {"f" * 99: 0}], "d", "1")
    monkeypatch.setenv("COLUMNS", "120")
    run("head", "d", "1").ends(
        0, "characters: '" + r"one\ntwo " * 4 + r"one\n'...", r"91 bytes: b'\x00" + "a" * 36 + "'..."
    )


@pytest.mark.parametrize(
    ("records", "shown"),
    [([[1, 2], [3, 4]], "bfloat16[2] 1 to 2"), ([[1, np.nan]], "bfloat16[2] 1 to 1, 1 NaN")],
)
def test_small_floats_have_least_and_greatest_too(run, storage, records, shown):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    storage.submit([{"x": np.array(row, ml_dtypes.bfloat16)} for row in records], "d", "1")
    run("head", "d", "1").ends(0, shown)


def test_long_text_is_cut(run, storage):
    values = {"text": "ä" * 1_234, "raw": b"\xff" * 2_345, "\u4f60\u597d": "\u597d" * 3}
    storage.submit([{**values, "f" * 99: 0}], "d", "1")
    out = run("head", "d", "1").out
    assert f"  1,234 characters: '{'ä' * 20}" in out
    assert r"  2,345 bytes: b'\xff\xff" in out
    assert f"  {'f' * 21}...  0\n" in out
    assert max(map(len, out.splitlines())) <= 80
    found = run("head", "d", "1", "--json").json["head"][0]
    assert found["text"] == {
        **{"dtype": "str", "shape": [], "value": "ä" * 200, "min": None, "max": None},
        "length": 1_234,
    }
    assert found["raw"]["value"] == "ff" * 200
    assert found["raw"]["length"] == 2_345


def test_arrays_are_shown_by_dtype_shape_least_and_greatest(run, storage):
    values = {
        "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        "nan": np.float32([np.nan, -1.5, 2]),
        "all_nan": np.full(2, np.nan),
        "empty": np.zeros((0, 3)),
        "bool": np.array([True, False]),
        "complex": np.array([1j]),
        "date": np.array(["2024-01-02", "NaT"], "datetime64[D]"),
        "words": np.array(["b", "a"], object),
    }
    storage.submit([values], "d", "1")
    lines = run("head", "d", "1").out.splitlines()
    assert dict(line.split(None, 1) for line in lines[1:]) == {
        "image": "uint8[2x2x3] 0 to 11",
        "nan": "float32[3] -1.5 to 2, 1 NaN",
        "all_nan": "float64[2], 2 NaN",
        "empty": "float64[0x3]",
        "bool": "bool[2] False to True",
        "complex": "complex128[1]",
        "date": "datetime64[D][2] 2024-01-02 to 2024-01-02, 1 NaT",
        "words": "str[2]",
    }
    (found,) = run("head", "d", "1", "--json").json["head"]
    assert found["nan"] == {
        **{"dtype": "float32", "shape": [3], "value": None, "min": -1.5, "max": 2.0, "length": None}
    }
    assert {tuple(value) for value in found.values()} == {tuple(found["nan"])}  # the keys


def test_numbers_that_json_has_not_are_text(run, storage):
    storage.submit([{"x": np.nan, "y": -np.inf, "z": 1 + 2j, "w": np.datetime64("2024-01-02")}], "d", "1")
    text = run("head", "d", "1", "--json").out
    (found,) = json.loads(text, parse_constant=pytest.fail)["head"]
    assert [found[name]["value"] for name in "xyzw"] == ["nan", "-inf", [1.0, 2.0], "2024-01-02"]


def test_pickled_fields_are_not_opened(run, storage, tmp_path):
    path = tmp_path / "exploded"
    storage.submit(
        [{"bomb": Bomb(str(path)), "number": 5}], "d", "1", records=yogadl.RecordOptions(allow_pickle=True)
    )
    ended = run("head", "d", "1")
    assert ended.out.splitlines()[1].split() == ["0", "pickled", "5"]
    assert run("head", "d", "1", "--json").code == 0
    assert "bomb    pickled" in run("info", "d", "1").out
    assert not path.exists()


def test_wide_characters_keep_the_columns_in_line(run, storage):
    storage.submit([{"a": "\u597d", "b": "x"}, {"a": "ab", "b": "y"}], "d", "1")
    _, first, second = run("head", "d", "1").out.splitlines()
    assert first.index("'x'") == second.index("'y'") - 1


def test_a_truncated_part_is_one_line(run, squares, root):
    part = next((root / "squares/parts").glob("*.mdb"))
    part.chmod(0o644)
    for one in (root / "squares/parts").glob("*.mdb"):
        one.write_bytes(b"")
    ended = run("head", "squares", "1")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "truncated" in ended.err


def test_export_writes_files_for_other_programs(run, squares, tmp_path):
    ended = run("export", "squares", "1", tmp_path / "out")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[1:] == [
        f"  {tmp_path / 'out' / name}" for name in ("number.npy", "spec.json", "square.npy")
    ]
    assert np.load(tmp_path / "out" / "square.npy").tolist() == [n**2 for n in range(11)]


def test_export_of_some_fields_as_json(run, squares, root, tmp_path):
    out = run("export", "squares", "1", tmp_path / "out", "--field", "square", "--json").out
    document = json.loads(out)
    assert document == {
        "storage": str(root),
        "id": "squares",
        "version": "1",
        "folder": str(tmp_path / "out"),
        "format": "npy",
        "files": ["spec.json", "square.npy"],
        "records": 11,
        "size_bytes": sum(path.stat().st_size for path in (tmp_path / "out").iterdir()),
    }


def test_ls_of_what_has_no_version_yet_looks_once_for_what_is_unfinished(run, squares, monkeypatch):
    with pytest.raises(ConnectionResetError):
        squares.submit(Broken(), "new", "1", build=yogadl.BuildOptions(part_bytes=100_000))
    asked = []
    unfinished = CacheStorage.unfinished
    monkeypatch.setattr(CacheStorage, "unfinished", lambda *words: asked.append(words) or unfinished(*words))
    ended = run("ls", "new")
    assert (ended.code, len(asked)) == (0, 1)
    assert "new 1 is not finished" in ended.err


def test_ls_lists_what_is_below_an_id(yoga, run, storage, root):
    for name in ("alice", "alice/sft/x", "alice/sft/y", "alices"):
        storage.submit([1, 2], name, "1")
    for given, expected in {
        "alice": ["alice", "alice/sft/x", "alice/sft/y"],
        "alice/sft": ["alice/sft/x", "alice/sft/y"],
        "alice/sft/x": ["alice/sft/x"],
        "alices": ["alices"],
    }.items():
        document = run("ls", given, "--json").json
        assert [one["id"] for one in document["versions"]] == expected
        document = yoga("ls", given, "-s", f"file://{root}", "--json").json
        assert [one["id"] for one in document["versions"]] == expected
        shared = yogadl.open_storage(root, shared=True)._backend.catalogue
        assert shared.datasets(below=given) == expected
    assert run("ls", "alice/sf").code == 1


@pytest.mark.parametrize("host", ["", "localhost"])
def test_ls_of_a_folder_that_is_named_by_a_url(yoga, tmp_path, host):
    folder = tmp_path / "a folder, 100%"
    url = folder.as_uri().replace("file://", f"file://{host}")
    assert "is not there" in yoga("ls", "-s", url).err
    assert not folder.exists()
    yogadl.open_storage(url, mirror=tmp_path / "mirror").submit([1, 2], "d", "1")
    found = yoga("ls", "-s", url, "--mirror", tmp_path / "mirror", "--json").json
    assert [one["id"] for one in found["versions"]] == ["d"]


def test_ls_counts_once_what_versions_share(run, storage, root):
    storage.submit({"n": np.arange(100_000)}, "d", "1", build=yogadl.BuildOptions(part_bytes=100_000))
    storage.append({"n": np.arange(7)}, "d", "2", base_version="1")
    storage.append({"n": np.arange(5)}, "d", "3", base_version="2")
    storage.submit({"n": np.arange(100_000)}, "other", "1", build=yogadl.BuildOptions(part_bytes=100_000))
    document = run("ls", "--json").json
    sizes = {(one["id"], one["version"]): one["size_bytes"] for one in document["versions"]}
    shared = {(one["id"], one["version"]): one["shared_bytes"] for one in document["versions"]}
    assert shared == {
        ("d", "1"): 0, ("d", "2"): sizes["d", "1"], ("d", "3"): sizes["d", "2"], ("other", "1"): 0
    }  # fmt: skip
    assert [one["shared_with"] for one in document["versions"]] == [[], ["1"], ["1", "2"], []]
    on_disk = sum(path.stat().st_size for path in (root / "d/parts").glob("*.mdb"))
    assert sum(sizes[key] - shared[key] for key in sizes if key[0] == "d") == on_disk
    ended = run("ls", "d")
    assert ended.err.count("more, which it shares with") == 2
    assert ended.err.rstrip().endswith("which it shares with 1, 2")


LONG_TREE = [{"role": "user", "content": "é" * number} for number in (3, 300)]


def test_json_values_are_shown_as_their_text_cut_as_text_is(run, storage):
    values = [None, "a", {"b": [1, 2.0]}, LONG_TREE, "\u202e" * 3]
    storage.submit({"tree": values, "n": list(range(5))}, "d", "1", json="tree")
    lines = run("head", "d", "1").out.splitlines()
    text = json.dumps(LONG_TREE, ensure_ascii=False, separators=(",", ":"))
    assert [line.split()[1] for line in lines[1:4]] == ["null", '"a"', '{"b":[1,2.0]}']
    assert text[:40] + "..." in lines[4] or text[:12] + "..." in lines[4]
    assert "\u202e" not in "".join(lines)
    found = run("head", "d", "1", "--json").json["head"]
    assert [one["tree"]["value"] for one in found[:4]] == ["null", '"a"', '{"b":[1,2.0]}', text[:200]]
    assert (found[3]["tree"]["dtype"], found[3]["tree"]["length"]) == ("json", len(text))
    assert "json" in run("info", "d", "1").out
