"""A dataset's name is checked before it ever becomes a path."""

import pickle

import pytest
from inside import RESERVED_NAMES, DatasetKey, is_dataset_id, new_key

from yogadl.errors import ConfigurationError

GOOD = ["a", "imagenet-1k", "team/vision/cats", "v1.2", "ünï", "a b", "x" * 200, "-", "10%", "1@2"]
BAD = [
    *["", "/", "/etc", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", ".hidden", "a/.hidden"],
    *["a\0b", "a\nb", "a\x7f", "a\\b", "\ud800"],
    *["x" * 201, "é" * 101, "/".join(["x" * 100] * 9), "x" * 10_000],
    "1.json/2",  # the file of version 1 is 1.json
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_is_an_id_and_a_version_also_of_a_new_key(name):
    key = DatasetKey(name, name)
    assert (key.id, key.version) == (name, name)
    assert is_dataset_id(name)
    assert new_key(name, name) == key


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_bad_name_is_neither(name):
    with pytest.raises(ConfigurationError, match="dataset id"):
        DatasetKey(name, "1")
    with pytest.raises(ConfigurationError, match="dataset version"):
        DatasetKey("a", name)
    assert not is_dataset_id(name)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_a_name_that_would_collide_with_our_folders_is_refused_anywhere_in_a_path(name):
    for text in (name, f"a/{name}", f"{name}/a"):
        with pytest.raises(ConfigurationError, match=f"reserved path segment '{name}'"):
            DatasetKey(text, "1")


@pytest.mark.parametrize("name", [None, 1, 1.0, b"a", ["a"]])
def test_a_name_that_is_no_string_is_refused_by_type(name):
    with pytest.raises(ConfigurationError, match=type(name).__name__):
        DatasetKey("a", name)


def test_a_message_never_shows_all_of_a_huge_name():
    with pytest.raises(ConfigurationError) as caught:
        DatasetKey("x" * 10_000, "1")
    assert len(str(caught.value)) < 250


def test_keys_are_values():
    assert DatasetKey("a", "1") == DatasetKey("a", "1")
    assert hash(DatasetKey("a", "1")) == hash(DatasetKey("a", "1"))
    assert sorted([DatasetKey("b", "1"), DatasetKey("a", "2"), DatasetKey("a", "1")])[0] == DatasetKey(
        "a", "1"
    )
    assert pickle.loads(pickle.dumps(DatasetKey("a", "1"))) == DatasetKey("a", "1")
    assert str(DatasetKey("a", "1")) == "'a' version '1'"


@pytest.mark.parametrize(
    "hidden", ["\u0085", "\u00ad", "\u200b", "\u202e", "\u2028", "\u2029", "\ufeff"], ids=ascii
)
def test_a_character_that_is_not_seen_is_in_no_new_name_but_in_those_that_there_are(hidden):
    name = f"a{hidden}b"
    assert DatasetKey("data", name).version == name
    for key in (("data", name), (name, "1")):
        with pytest.raises(ConfigurationError, match=rf"invisible character, U\+{ord(hidden):04X}"):
            new_key(*key)
