"""A tag names a version, can be moved without a race, and is never taken for a version."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from inside import _tags
from processes import in_child

import yogadl
from yogadl.errors import (
    CacheFormatError,
    ConfigurationError,
    CursorError,
    DatasetNotFoundError,
    StorageError,
)


@pytest.fixture
def tagged(storage):
    """A storage with versions "1" and "2", the first of which is tagged."""
    storage.submit(np.arange(10), "d", "1")
    storage.append(np.arange(10, 12), "d", "2", base_version="1")
    storage.tag("d", "stable", "1")
    return storage


def folder_of(storage, tag="stable"):
    return Path(storage.location, "d", "tags", tag)


def told(storage):
    return [(move.tag, move.version) for move in storage.log("d").moves]


# What a tag names.


def test_a_tag_is_moved_and_taken_away_and_all_of_that_is_kept(tagged):
    tagged.tag("d", "stable", "2")
    tagged.tag("d", "stable", "2")  # as it is: no move
    tagged.untag("d", "stable")
    tagged.tag("d", "stable", "1")
    assert tagged.tags("d") == {"stable": "1"}
    assert told(tagged) == [("stable", "1"), ("stable", "2"), ("stable", None), ("stable", "1")]


def test_a_tag_can_be_given_wherever_a_version_is_read(tagged, tmp_path):
    assert len(tagged.fetch("d", "stable")) == 10
    assert len(tagged.fetch("d", "stable", digest=tagged.info("d", "1").digest)) == 10
    assert tagged.info("d", "stable").version == "1"
    assert tagged.verify("d", "stable").records == 10
    assert tagged.export("d", "stable", tmp_path / "out").records == 10
    found = tagged.explain("d", "stable", "2")
    assert (found.version, found.other) == ("1", "2")
    tagged.append([7], "d", "3", base_version="stable")
    tagged.compact("d", "stable", "4")
    assert [earlier.version for earlier in tagged.info("d", "3").earlier] == ["1"]
    assert tagged.info("d", "4").fingerprint == tagged.info("d", "1").fingerprint
    target = yogadl.open_storage(tmp_path / "other")
    assert yogadl.storage.copy(tagged, target, "d", "stable")
    assert (target.versions("d"), target.tags("d")) == (["1"], {})


def test_another_digest_than_that_of_what_a_tag_names_is_refused(tagged):
    with pytest.raises(CacheFormatError, match="'d' version '1' has digest"):
        tagged.fetch("d", "stable", digest=tagged.info("d", "2").digest)


def test_a_tag_may_name_what_another_one_does(tagged):
    tagged.tag("d", "good", "stable")
    tagged.tag("d", "stable", "2")
    assert tagged.tags("d") == {"good": "1", "stable": "2"}


def test_tags_may_have_slashes_and_begin_alike(tagged):
    tagged.tag("d", "stable/old", "2")
    tagged.tag("d", "stable/old/er", "1")
    assert tagged.tags("d") == {"stable": "1", "stable/old": "2", "stable/old/er": "1"}
    tagged.untag("d", "stable")
    assert tagged.tags("d") == {"stable/old": "2", "stable/old/er": "1"}


def test_each_dataset_has_tags_of_its_own(tagged):
    tagged.submit([1], "d/e", "1")
    assert tagged.tags("d/e") == {}
    with pytest.raises(DatasetNotFoundError):
        tagged.fetch("d/e", "stable")


def test_the_longest_names_there_are_fit(storage):
    version = "/".join(["ü" * 100, "\u4e00" * 66, "v" * 200, "w" * 190])
    storage.submit([1], "d", version)
    storage.tag("d", "t" * 200, version)
    assert storage.fetch("d", "t" * 200)[0] == 1


# What was fetched by one.


def repr_of(pickled):
    return repr(pickle.loads(pickled))


def test_what_was_fetched_by_a_tag_remembers_the_version(tagged):
    ref = tagged.fetch("d", "stable")
    tagged.tag("d", "stable", "2")
    assert (ref.lineage.id, ref.lineage.version, ref.lineage.tag) == ("d", "1", "stable")
    assert "'d' version '1' (tag 'stable')" in repr(ref)
    assert in_child(repr_of, pickle.dumps(ref)) == repr(ref)
    assert "tag" not in repr(tagged.fetch("d", "1"))
    assert ref[:5].lineage is None


def test_what_is_built_from_it_says_which_version_that_was(tagged):
    tagged.submit(tagged.fetch("d", "stable"), "copied", "1")
    assert tagged.info("copied", "1").builder["from"] == {"id": "d", "version": "1", "tag": "stable"}
    tagged.submit(tagged.fetch("d", "2"), "copied", "2")
    assert tagged.info("copied", "2").builder["from"] == {"id": "d", "version": "2"}


def test_a_cursor_says_which_version_it_was_and_so_does_its_error(tagged):
    tagged.submit(np.arange(50, 60), "d", "3")
    stream = tagged.fetch("d", "stable").stream(shuffle=True)
    cursor = iter(stream.batch(2)).state_dict()
    assert cursor["version"] == stream.cursor(2)["version"] == "1"
    assert "version" not in iter(tagged.fetch("d", "1").stream(shuffle=True).batch(2)).state_dict()
    tagged.fetch("d", "1").stream(shuffle=True, cursor=cursor)
    tagged.tag("d", "stable", "3")
    with pytest.raises(CursorError, match="open the dataset and version that it was saved with, '1'"):
        tagged.fetch("d", "stable").stream(shuffle=True, cursor=cursor)


@pytest.mark.parametrize("version", [1, None, ["1"], {}])
def test_a_cursor_of_what_can_be_no_version_is_refused(tagged, version):
    stream = tagged.fetch("d", "stable").stream()
    with pytest.raises(CursorError, match=r"'version' is .*, not a string"):
        tagged.fetch("d", "stable").stream(cursor=stream.cursor(2) | {"version": version})


# What is refused.


VERBS = {
    "submit": lambda storage, name: storage.submit([1], "d", name),
    "begin": lambda storage, name: storage.begin("d", name, partitions=1),
    "append": lambda storage, name: storage.append([1], "d", name, base_version="2"),
    "compact": lambda storage, name: storage.compact("d", "2", name),
    "tag": lambda storage, name: storage.tag("d", name, "2"),
    "cacheable": lambda storage, name: storage.cacheable("d", name)(lambda: [1])(),
    "delete": lambda storage, name: storage.delete("d", name),
    "undelete": lambda storage, name: storage.undelete("d", name),
}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "tag"])
def test_no_version_is_made_or_thrown_away_under_the_name_of_a_tag(tagged, verb):
    says = r"'stable' is a tag of 'd', for its version '1': .*\(untag\)"
    with pytest.raises(ConfigurationError, match=says):
        VERBS[verb](tagged, "stable")
    assert tagged.versions("d") == ["1", "2"]
    assert tagged.unfinished() == []
    tagged.untag("d", "stable")
    tagged.submit([1], "d", "stable")  # now it can be


@pytest.mark.parametrize("verb", ["submit", "begin", "append", "compact", "tag"])
def test_a_version_that_nothing_is_there_to_work_out_from_is_refused(tagged, verb):
    with pytest.raises(ConfigurationError, match=r"'auto' works only with storage\.cacheable"):
        VERBS[verb](tagged, "auto")
    assert tagged.versions("d") == ["1", "2"]
    assert list(tagged.tags("d")) == ["stable"]


def test_no_copy_is_made_under_the_name_of_a_tag(tagged, tmp_path):
    other = yogadl.open_storage(tmp_path / "other")
    other.submit([1], "d", "stable")
    with pytest.raises(ConfigurationError, match="'stable' is a tag of 'd'"):
        yogadl.storage.copy(other, tagged, "d", "stable")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a@b", "has an '@', which separates a dataset's id from a tag"),
        ("../x", "has a path segment that starts with a dot"),
        ("/a", "has an empty path segment"),
        ("a//b", "has an empty path segment"),
        (".a", "has a path segment that starts with a dot"),
        ("a\nb", "has a control character"),
        ("a\\b", "has a backslash"),
        ("parts", "has the reserved path segment 'parts'"),
        ("a\u202eb", "has an invisible character"),
        ("x" * 201, "has a path segment longer than 200 bytes"),
        ("x/" * 400 + "x", "is longer than 800 bytes"),
        (7, "must be a string, not int"),
    ],
)
def test_what_can_be_no_name_is_none_for_a_tag_and_the_error_says_why(tagged, name, why):
    for do in (lambda: tagged.tag("d", name, "1"), lambda: tagged.untag("d", name)):
        with pytest.raises(ConfigurationError, match=why) as caught:
            do()
        assert len(str(caught.value)) < 250
    assert tagged.tags("d") == {"stable": "1"}


@pytest.mark.parametrize("name", ["a b", "ä", "-x", "x" * 200, "a/b", "1+1"])
def test_what_a_version_may_be_called_a_tag_may(tagged, name):
    tagged.tag("d", name, "1")
    assert tagged.tags("d") == {"stable": "1", name: "1"}
    assert len(tagged.fetch("d", name)) == len(tagged.fetch("d", "1"))


def test_no_tag_is_called_as_a_version_is(tagged):
    with pytest.raises(ConfigurationError, match="there is a 'd' version '2', so a tag can't have that name"):
        tagged.tag("d", "2", "1")


def test_what_is_not_there_is_neither_tagged_nor_untagged(tagged):
    with pytest.raises(DatasetNotFoundError, match=r"versions \['1', '2'\], and the tags \['stable'\]"):
        tagged.tag("d", "new", "7")
    with pytest.raises(DatasetNotFoundError, match=r"no tag 'new' .* the tags \['stable'\]"):
        tagged.untag("d", "new")
    with pytest.raises(DatasetNotFoundError, match=r"there is no dataset 'e' .* the datasets \['d'\]"):
        tagged.untag("e", "stable")
    tagged.untag("d", "stable")
    with pytest.raises(DatasetNotFoundError, match="no tag 'stable'"):
        tagged.untag("d", "stable")
    with pytest.raises(DatasetNotFoundError, match="there is no 'd' version 'stable'"):
        tagged.fetch("d", "stable")


def test_what_a_tag_names_is_not_deleted(tagged):
    tagged.tag("d", "good", "1")
    with pytest.raises(ConfigurationError, match=r"'d' version '1' has the tags \['good', 'stable'\]"):
        tagged.delete("d", "1")
    tagged.tag("d", "stable", "2")
    tagged.untag("d", "good")
    tagged.delete("d", "1")
    assert tagged.versions("d") == ["2"]


def test_a_tag_of_a_version_that_is_gone_all_the_same_says_so(tagged):
    """As when one process tagged what another was deleting."""
    Path(tagged.location, "d/versions/1.json").unlink()
    for do in (tagged.fetch, tagged.info, tagged.verify):
        with pytest.raises(
            DatasetNotFoundError, match="tag 'stable' of 'd' names the version '1', which was"
        ):
            do("d", "stable")
    with pytest.raises(DatasetNotFoundError):
        tagged.append([1], "d", "3", base_version="stable")


def test_a_version_that_is_replaced_stays_tagged(tagged):
    tagged.submit([5], "d", "1")
    assert tagged.fetch("d", "stable")[0] == 5


def test_of_a_version_and_a_tag_of_one_name_the_version_counts(tagged):
    """As when one process tagged while another built, or a library that knows no tags did."""
    tagged.submit([5], "d", "both")
    root = tagged._backend.root
    root.write("d/tags/both/0000000001.tag", _tags.TagMove("both", "1", 0.0).to_bytes())
    assert tagged.fetch("d", "both")[0] == 5
    assert tagged.tags("d") == {"both": "1", "stable": "1"}
    tagged.untag("d", "both")
    tagged.delete("d", "both")


# At the same time.


def test_a_move_that_another_one_overtook_comes_after_it(tagged, monkeypatch):
    root = type(tagged._backend.root)
    write_if_absent, others = root.write_if_absent, iter([None])

    def overtaken(self, name, content):
        for _ in others:
            yogadl.open_storage(tagged.location).tag("d", "stable", "2")
        return write_if_absent(self, name, content)

    tagged.submit([1], "d", "3")
    monkeypatch.setattr(root, "write_if_absent", overtaken)
    tagged.tag("d", "stable", "3")
    assert told(tagged) == [("stable", "1"), ("stable", "2"), ("stable", "3")]


def test_moves_stay_in_order_though_a_clock_went_back(tagged, monkeypatch):
    monkeypatch.setattr(type(tagged._backend.root), "now", lambda _: 5.0)
    tagged.tag("d", "stable", "2")
    assert told(tagged) == [("stable", "1"), ("stable", "2")]


# What else keeps order.


def test_prune_keeps_tags_as_long_as_there_is_a_version(tagged):
    tagged.delete("d", "2")
    tagged.prune(grace_s=0)
    assert tagged.tags("d") == {"stable": "1"}
    tagged.untag("d", "stable")
    tagged.delete("d", "1")
    tagged.prune()  # it can still be undeleted
    assert len(list(folder_of(tagged).iterdir())) == 2
    tagged.prune(grace_s=0)
    assert list(folder_of(tagged).iterdir()) == []
    assert tagged.datasets() == []


def test_tags_are_no_datasets_versions_or_unfinished_builds(tagged):
    assert tagged.datasets() == ["d"]
    assert tagged.versions("d") == ["1", "2"]
    assert tagged.unfinished() == []
    with pytest.raises(ConfigurationError, match="reserved path segment 'tags'"):
        tagged.submit([1], "d/tags", "1")


# Files that are none of a tag.


def test_a_tag_of_a_newer_kind_is_refused_by_name(tagged):
    path = folder_of(tagged) / "0000000002.tag"
    path.write_text(json.dumps({"format": 2, "version": "1", "moved": 0}))
    with pytest.raises(
        CacheFormatError,
        match=r"0000000002\.tag has a newer format than this yogadl can read: upgrade yogadl",
    ):
        tagged.fetch("d", "stable")


def test_other_files_are_none_of_a_tag(tagged):
    for name in ("0000000000.tag", "2.tag", "0000000002.json", "00000000022.tag", ".0000000002.tag", "notes"):
        (folder_of(tagged) / name).write_text("{")
    (folder_of(tagged, "") / "0000000001.tag").write_text("{")
    assert tagged.tags("d") == {"stable": "1"}
    assert len(tagged.fetch("d", "stable")) == 10


def test_a_link_is_no_tag(tagged, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"format": 1, "version": "2", "moved": 0}')
    (folder_of(tagged) / "0000000002.tag").symlink_to(secret)
    with pytest.raises(CacheFormatError):
        tagged.fetch("d", "stable")


# The log.


def test_the_log_says_what_each_version_adds_to_the_one_that_it_continues(tagged):
    tagged.submit(np.arange(7), "d", "other")
    tagged.append([1], "d", "3", base_version="2")
    log = tagged.log("d")
    first, second, other, third = log.versions
    assert [one.version for one in log.versions] == ["1", "2", "other", "3"]
    assert [one.before for one in log.versions] == [None, "1", "2", "2"]
    assert (first.shared_bytes, first.added_bytes) == (0, tagged.info("d", "1").size_bytes)
    assert second.shared_bytes == first.added_bytes
    assert other.shared_bytes == 0
    assert third.shared_bytes + third.added_bytes == tagged.info("d", "3").size_bytes
    assert first.tags == ("stable",)
    assert "version '2' has the records of '1', and 2 more" in str(second.explanation)
    assert "their records differ" in str(other.explanation)


def test_a_version_whose_base_is_gone_is_compared_with_what_that_continued(tagged):
    tagged.append([1], "d", "3", base_version="2")
    tagged.submit([1], "d", "2")  # another one now
    (three,) = (one for one in tagged.log("d").versions if one.version == "3")
    assert three.before == "1"
    assert three.shared_bytes == tagged.info("d", "1").size_bytes


def test_the_log_names_damaged_versions_and_goes_on(tagged):
    Path(tagged.location, "d/versions/2.json").write_text("{")
    log = tagged.log("d")
    assert [one.version for one in log.versions] == ["1"]
    assert list(log.damaged) == ["2"]


def test_there_is_no_log_of_what_is_not_there(tagged):
    with pytest.raises(DatasetNotFoundError, match=r"no dataset 'e' .* datasets \['d'\]"):
        tagged.log("e")


@pytest.mark.parametrize("do", [lambda s: s.tag("d", "stable", "2"), lambda s: s.untag("d", "stable")])
def test_a_tag_file_of_the_highest_number_is_named_and_no_loop_without_end(tagged, do):
    path = folder_of(tagged) / "9999999999.tag"
    path.write_bytes((folder_of(tagged) / "0000000001.tag").read_bytes())
    with pytest.raises(
        CacheFormatError, match=r"stable/9999999999\.tag has the highest possible number.*Delete it"
    ):
        do(tagged)
    path.rename(folder_of(tagged) / "9999999998.tag")
    do(tagged)
    path.unlink()
    do(tagged) if tagged.tags("d") else tagged.tag("d", "stable", "2")


def test_what_takes_the_name_of_the_next_tag_and_is_none_is_named(tagged):
    (folder_of(tagged) / "0000000002.tag").mkdir()
    with pytest.raises(StorageError, match=r"stable/0000000002\.tag can't be written.* remove it"):
        tagged.tag("d", "stable", "2")
    (folder_of(tagged) / "0000000002.tag").rmdir()
    tagged.tag("d", "stable", "2")
    assert tagged.tags("d") == {"stable": "2"}
