"""What a folder means: which of its files are adopted, what is left out and said, and their format."""

import json
import logging

import pytest
from adopted_files import FORMATS, SUFFIXES, every, plain, record, write, write_numbered

import yogadl
from yogadl.errors import ConfigurationError, UnsupportedDataError


@pytest.fixture
def storage(tmp_path):
    return yogadl.open_storage(tmp_path / "caches", foreign={f"file://{tmp_path}/in": {}})


@pytest.fixture(params=["", "file://"], ids=["folder", "bucket"])
def folder(request, tmp_path):
    """Return the address of the folder `in`: as a folder, and as a bucket."""
    return f"{request.param}{tmp_path}/in"


def adopted(storage, paths, version="1", **options):
    storage.adopt(paths, "d", version, **options)
    return every(storage.fetch("d", version))


def test_hidden_files_and_other_endings_are_left_out_and_said(tmp_path, storage, folder, caplog):
    expected = write_numbered(tmp_path / "in", "jsonl", [3, 4])
    for name in (".ipynb_checkpoints/000-checkpoint.jsonl", "._000.jsonl", "sub/.git/x.jsonl"):
        write(tmp_path / "in" / name, "jsonl", [b"hidden" * 9])
    for name in ("README.txt", "sub/notes.md"):
        write(tmp_path / "in" / name, "jsonl", [b"other" * 9])
    assert adopted(storage, folder, format="jsonl") == expected
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "5 files are left out" in said
    assert ".jsonl .ndjson" in said
    assert f"{folder}/._000.jsonl" in said
    caplog.clear()
    assert storage.refresh("d", "1", "2").lineage.version == "1"
    write(tmp_path / "in/sub/z.jsonl", "jsonl", [b"new" * 9])
    assert storage.refresh("d", "1", "2").lineage.version == "2"
    assert every(storage.fetch("d", "2")) == [*expected, b"new" * 9]


def test_a_pattern_takes_hidden_files_only_if_it_has_the_dot(tmp_path, storage, folder):
    write(tmp_path / "in/a.jsonl", "jsonl", [b"a" * 30])
    for name in (".b.jsonl", ".c/d.jsonl"):
        write(tmp_path / "in" / name, "jsonl", [b"h" * 30])
    for number, pattern in enumerate(("*.jsonl", "**/*.jsonl", "**", "?.jsonl")):
        assert adopted(storage, f"{folder}/{pattern}", f"{number}", format="jsonl") == [b"a" * 30], pattern
    for number, pattern in enumerate((".b.jsonl", ".b*.jsonl", ".*/*.jsonl", ".c/d.jsonl", ".c")):
        found = adopted(storage, f"{folder}/{pattern}", f"hidden-{number}", format="jsonl")
        assert found == [b"h" * 30], pattern


@pytest.mark.parametrize("pattern", ["notes.txt", "*.txt"])
def test_text_of_any_ending_is_adopted_by_its_name(tmp_path, storage, folder, pattern):
    write(tmp_path / "in/notes.txt", "jsonl", [b"a line " * 9])
    assert adopted(storage, f"{folder}/{pattern}", format="jsonl") == [b"a line " * 9]


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_said_of_a_folder_of_one_format(tmp_path, storage, form, caplog):
    write_numbered(tmp_path / "in", form, [3, 4])
    adopted(storage, tmp_path / "in", format=form)
    assert "left out" not in caplog.text


@pytest.mark.parametrize("name", ["notes.txt", ".hidden.jsonl"])
def test_a_folder_with_other_files_alone_is_an_error_that_names_one(tmp_path, storage, folder, name):
    write(tmp_path / "in" / name, "jsonl", [b"a" * 30])
    for options in ({}, {"format": "jsonl"}):
        with pytest.raises(ConfigurationError, match=rf"no file of the format in .*/in, only 1 .*/in/{name}"):
            adopted(storage, folder, **options)


# The format.


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("path", ["", "/", "/*.{suffix}", "/**", "/000.{suffix}", "/{{000..001}}.{suffix}"])
def test_the_format_is_found_by_the_names(tmp_path, storage, folder, form, path):
    expected = [plain(each) for each in write_numbered(tmp_path / "in", form, [3, 4])]
    if path.startswith("/000"):
        expected = expected[:3]
    if (form, path) == ("megatron", "/**"):  # it matches the .idx, too
        with pytest.raises(ConfigurationError, match="the format can't be told from"):
            adopted(storage, folder + path)
        return
    assert adopted(storage, folder + path.format(suffix=SUFFIXES[form])) == expected
    assert storage.refresh("d", "1", "2").lineage.version == "1"


def test_a_list_of_one_format(tmp_path, storage):
    expected = write_numbered(tmp_path / "in", "jsonl", [3, 4])
    write(tmp_path / "in/README.md", "jsonl", [b"r"])
    assert adopted(storage, [tmp_path / "in/000.jsonl", f"{tmp_path}/in/001*"]) == expected


@pytest.mark.parametrize("paths", [[""], ["/**"], ["/a.jsonl", "/b.tar"], ["/a.jsonl", "/sub"]])
def test_two_formats_are_an_error_that_names_both(tmp_path, storage, folder, paths):
    write(tmp_path / "in/a.jsonl", "jsonl", [b"a" * 30])
    for name in ("b.tar", "sub/c.tar"):
        write(tmp_path / "in" / name, "webdataset", [record("webdataset", 1)])
    with pytest.raises(ConfigurationError, match=r"of two formats: (jsonl|webdataset).*a\.jsonl") as caught:
        adopted(storage, [f"{folder}{path}" for path in paths])
    assert "webdataset (" in str(caught.value)
    assert ".tar'" in str(caught.value)
    assert adopted(storage, folder, format="jsonl") == [b"a" * 30]


@pytest.mark.parametrize("path", ["", "/x.txt", "/*", "/tokens.bin"])
def test_names_that_tell_no_format_are_an_error(tmp_path, storage, folder, path):
    for name in ("x.txt", "tokens.bin"):
        write(tmp_path / "in" / name, "jsonl", [b"a" * 30])
    with pytest.raises(ConfigurationError, match=r"can't be told from .*give format=.*one of arrow, jsonl"):
        adopted(storage, folder + path)


def test_a_format_that_is_none_is_refused(tmp_path, storage):
    write(tmp_path / "in/a.jsonl", "jsonl", [b"a" * 30])
    for format in ("orc", "", 3, ["jsonl"], b"jsonl"):
        with pytest.raises(ConfigurationError, match="there is no format"):
            adopted(storage, tmp_path / "in", format=format)
    for options in (
        {"format": "jsonl", "fields": ["a"]},
        {"format": "npy", "missing": "empty"},
    ):
        with pytest.raises(ConfigurationError, match="no option of the format"):
            adopted(storage, tmp_path / "in", **options)


# What Hugging Face saves. The files need not be of Arrow to be refused.


@pytest.mark.parametrize(
    "listed",
    [None, 3, [3], ["../x.arrow"], [{}], [{"filename": 3}], [{"filename": ""}], [{"filename": "a/b.arrow"}],
     [{"filename": "a\0"}], {"filename": "a.arrow"}],
)  # fmt: skip
def test_a_list_of_files_that_are_none_is_refused(tmp_path, storage, folder, listed):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.arrow").write_bytes(b"a")
    (tmp_path / "in/state.json").write_text(json.dumps({"_data_files": listed}))
    with pytest.raises(UnsupportedDataError, match=r"state\.json: .* is no file in its folder"):
        adopted(storage, folder, format="arrow")


@pytest.mark.parametrize("content", ["[1]", "3", '"_data_files"', '{"data": []}'])
def test_what_lists_no_files_is_passed_over(tmp_path, storage, folder, content):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.arrow").write_bytes(b"a")
    (tmp_path / "in/state.json").write_text(content)
    with pytest.raises(UnsupportedDataError, match=r"in/a\.arrow"):
        adopted(storage, folder, format="arrow")


def test_a_file_that_is_listed_and_missing_is_named(tmp_path, storage, folder):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.arrow").write_bytes(b"a")
    (tmp_path / "in/state.json").write_text(json.dumps({"_data_files": [{"filename": "b.arrow"}]}))
    with pytest.raises(UnsupportedDataError, match=r"in/b\.arrow, which state\.json names, is missing"):
        adopted(storage, folder, format="arrow")


@pytest.mark.parametrize("pattern", ["in", "in/*/*.jsonl", "in/**/*.jsonl"])
def test_a_link_to_a_folder_that_is_gone_is_an_error_not_fewer_records(tmp_path, storage, pattern):
    (tmp_path / "in").mkdir()
    for name in "abc":
        write(tmp_path / f"disk/{name}/{name}.jsonl", "jsonl", [name.encode()])
        (tmp_path / f"in/{name}").symlink_to(tmp_path / f"disk/{name}")
    assert len(adopted(storage, tmp_path / pattern, format="jsonl")) == 3
    (tmp_path / "disk/b").rename(tmp_path / "disk/gone")
    for call in (
        lambda: adopted(storage, tmp_path / pattern, "2", format="jsonl"),
        lambda: storage.refresh("d", "1", "2"),
    ):
        with pytest.raises(ConfigurationError, match="in/b is a link to what is not there"):
            call()
    (tmp_path / "in/b").unlink()
    assert len(adopted(storage, tmp_path / pattern, "2", format="jsonl")) == 2


def test_folders_below_what_a_pattern_matches_are_not_looked_into(tmp_path, storage, folder):
    """Two links to one folder are refused only where its files would come twice."""
    write(tmp_path / "in/a.jsonl", "jsonl", [b"a" * 30])
    write(tmp_path / "disk/b.jsonl", "jsonl", [b"b" * 30])
    for name in "xy":
        (tmp_path / "in" / name).symlink_to(tmp_path / "disk")
    assert adopted(storage, f"{folder}/*", format="jsonl") == [b"a" * 30]


def test_a_file_whose_name_counts_others_is_taken_by_its_name(tmp_path, storage):
    for name in ("k-000", "k-001", "k-{000..001}"):
        write(tmp_path / f"{name}.jsonl", "jsonl", [name.encode()])
    pattern = tmp_path / "k-{000..001}.jsonl"
    assert adopted(storage, pattern) == [b"k-{000..001}"]
    pattern.unlink()
    assert len(adopted(storage, pattern, "2")) == 2


@pytest.mark.parametrize("content", [b"", b'{"_data_files": [{"filename": "x.arrow"}'])
def test_a_damaged_list_of_files_is_no_reason_to_read_all_there_are(tmp_path, storage, content):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.arrow").write_bytes(b"no matter what")
    (tmp_path / "in/state.json").write_bytes(content)
    with pytest.raises(UnsupportedDataError, match=r"state\.json is damaged"):
        adopted(storage, tmp_path / "in", format="arrow")
