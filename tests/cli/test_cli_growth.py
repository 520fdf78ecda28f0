"""Tags and the log on the command line: ID@TAG wherever a version is read."""

import pytest


@pytest.fixture
def tagged(squares):
    """Two versions, one of which continues the other, and a dataset whose name has an @."""
    squares.append({"number": [1], "square": [1]}, "squares", "1+1", base_version="1")
    squares.tag("squares", "stable", "1+1")
    squares.submit([1, 2], "me@home", "1")
    return squares


def test_a_version_is_tagged_listed_and_untagged(run, squares):
    assert run("tag", "squares", "stable", "1").out == "squares@stable is version 1 now.\n"
    assert run("tag", "squares", "good", "stable").code == 0
    listed = run("tags", "squares").out.split()
    assert listed == ["tag", "version", "good", "1", "stable", "1"]
    assert run("tags", "squares", "--json").json["tags"] == {"good": "1", "stable": "1"}
    assert run("untag", "squares", "good").code == 0
    assert squares.tags("squares") == {"stable": "1"}


def test_a_dataset_without_tags_is_told(run, squares):
    ended = run("tags", "squares")
    assert (ended.code, ended.out) == (0, "")
    assert "squares has no tags" in ended.err


JSON = (
    ["info", "..."],
    ["head", "..."],
    ["verify", "..."],
    ["export", "...", "out"],
    ["bench", "...", "--seconds", "0.01"],
)


@pytest.mark.parametrize(
    "name", [["squares@stable"], ["squares", "stable"], ["squares@1+1"], ["squares", "1+1"]]
)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["info", "..."], "12"),
        (["head", "..."], "square"),
        (["verify", "..."], "squares 1+1 is sound: 12 records"),
        (["export", "...", "out"], "Wrote 12 records of squares 1+1 to"),
        (["explain", "...", "1"], "version '1+1' has the records of '1', and 1 more"),
        (["push", "...", "other"], "squares 1+1 is in"),
        (["push", "...", "--to", "other"], "squares 1+1 is in"),
        (["pull", "...", "--to", "other"], "squares 1+1 is in"),
        (["bench", "...", "--seconds", "0.01"], "squares 1+1: 12 records"),
        *(([*words, "--json"], '"version": "1+1"') for words in JSON),
    ],
)
def test_a_tag_will_do_wherever_a_version_is_read(run, tagged, tmp_path, monkeypatch, name, command, said):
    monkeypatch.chdir(tmp_path)
    words = [word for given in command for word in (name if given == "..." else [given])]
    run(*words).ends(0, said)


def test_info_says_what_a_version_continues(run, tagged):
    assert "continues    version 1, with 1 record more" in run("info", "squares@stable").out
    found = run("info", "squares@stable", "--json").json
    assert [(earlier["version"], earlier["records"]) for earlier in found["earlier"]] == [("1", 11)]
    assert "continues" not in run("info", "squares", "1").out


def test_the_log_has_versions_and_tags_in_order(run, tagged):
    tagged.tag("squares", "stable", "2")
    ended = run("log", "squares").ends(0)
    heads = [line[line.index("  ") + 2 :] for line in ended.out.splitlines() if not line.startswith(" ")]
    assert heads[-3:] == ["version 1+1", "tag stable -> version 1+1", "tag stable -> version 2"]
    assert "version 2  (stable)" in ended.out
    assert "shared with 1" in ended.out


def test_the_log_as_json_has_all_of_it(run, tagged):
    found = run("log", "squares", "--json").json
    assert [one["version"] for one in found["versions"]] == ["1", "2", "1+1"]
    assert found["versions"][2]["before"] == "1"
    assert found["versions"][2]["tags"] == ["stable"]
    assert found["versions"][2]["earlier"][0]["records"] == 11
    assert found["versions"][2]["notes"][-1]
    assert [(move["tag"], move["version"]) for move in found["tags"]] == [("stable", "1+1")]
    assert found["damaged"] == {}


def test_a_damaged_version_is_told_with_the_log(run, tagged, root):
    (root / "squares/versions/2.json").write_text("{")
    ended = run("log", "squares").ends(1)
    assert "version 1+1" in ended.out
    assert "2.json is damaged" in ended.err


def test_metadata_is_kept_and_shown(run, tmp_path, forgets_modules):
    script = tmp_path / "kept_data.py"
    script.write_text("def squares():\n    return [1, 4, 9]\n")
    given = ["--metadata", 'classes=["even","odd"]', "--metadata", "licence=CC0"]
    run("build", f"{script}:squares", "kept", "1", *given)
    for command in (["info", "kept", "1"], ["log", "kept"]):
        assert "metadata" in run(*command).out
        assert '{"classes": ["even", "odd"], "licence": "CC0"}' in run(*command).out
    found = run("log", "kept", "--json").json
    assert found["versions"][0]["metadata"] == {"classes": ["even", "odd"], "licence": "CC0"}
