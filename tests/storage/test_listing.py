"""Local files are found by one walk, for `adopt`, `refresh` and `image_folder`: patterns, links, loops."""

import glob
import os
import random
import tempfile

import pytest
from inside import Permitted

import yogadl
from yogadl.errors import ConfigurationError, StorageError

STORES = Permitted(True)


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"%d " % len(str(path)) * 9)


def adopt(place, pattern=""):
    with tempfile.TemporaryDirectory() as caches:
        yogadl.open_storage(caches).adopt(place / pattern, "d", "1", format="jsonl")
    return [file.address for file in STORES.listed(str(place / pattern), str)]


def adopt_by_pattern(place):
    return adopt(place, "**/*.jsonl")


def look_at_images(place):
    return yogadl.image_folder(place, extensions=[".jsonl"]).files


WAYS = [adopt, adopt_by_pattern, look_at_images]


# Patterns.

SEGMENTS = ["*", "**", "a*", "[ab]", "?", "a", "b", "[!a]*", ".h*", "*.x", "[a", "ab", "[z-a]", "[]a]"]


@pytest.mark.parametrize("seed", range(20))
def test_patterns_match_what_those_of_python_match(tmp_path, seed):
    rng = random.Random(seed)
    names = ["a", "b", "ab", ".h", "c.x", "z", "]"]
    for _ in range(25):
        path = tmp_path.joinpath(*rng.choices(names, k=rng.randrange(1, 5)))
        if not any(parent.is_file() for parent in [path, *path.parents]) and not path.exists():
            write(path)
    for _ in range(60):
        pattern = f"{tmp_path}/{'/'.join(rng.choices(SEGMENTS, k=rng.randrange(1, 5)))}"
        if os.path.isdir(pattern):  # which stands for its files
            continue
        expected = sorted(set(filter(os.path.isfile, glob.glob(pattern, recursive=True))))
        try:
            found = [file.address for file in STORES.listed(pattern, str)]
        except ConfigurationError:
            found = []
        assert found == expected, pattern


@pytest.mark.parametrize("name", ["a*.jsonl", "a?.jsonl", "[a].jsonl", "**"])
def test_a_path_that_is_there_is_no_pattern(tmp_path, name):
    for each in (name, "a1.jsonl", "a.jsonl"):
        write(tmp_path / each)
    assert [file.address for file in STORES.listed(f"{tmp_path}/{name}", str)] == [f"{tmp_path}/{name}"]


@pytest.mark.parametrize("pattern", ["run[1]", "run[1]/*.jsonl", "run[1]/**", "run[1]/"])
def test_a_folder_that_is_there_is_no_pattern(tmp_path, pattern):
    for name in ("run[1]", "run1"):
        write(tmp_path / name / "a.jsonl")
    found = STORES.listed(f"{tmp_path}/{pattern}", str)
    assert [file.address for file in found] == [f"{tmp_path}/run[1]/a.jsonl"]


# Links.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("to", ["in/cat", "in", ".", ".."])
def test_a_link_to_a_folder_that_it_lies_in_is_an_error_that_names_both(tmp_path, way, to):
    write(tmp_path / "top/in/cat/a.jsonl")
    (tmp_path / "top/in/cat/up").symlink_to(tmp_path / "top" / to)
    with pytest.raises(ConfigurationError, match="in which it lies") as caught:
        way(tmp_path / "top/in")
    assert str(tmp_path / "top/in/cat/up") in str(caught.value)
    assert str((tmp_path / "top" / to).resolve()) in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_folder_that_is_met_twice_is_an_error_that_names_both(tmp_path, way, name):
    write(tmp_path / "in/cat/a.jsonl")
    (tmp_path / "in" / name).symlink_to("cat")
    with pytest.raises(ConfigurationError, match="are the same folder") as caught:
        way(tmp_path / "in")
    assert f"{tmp_path}/in/cat" in str(caught.value)
    assert f"{tmp_path}/in/{name}" in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_links_that_multiply_end(tmp_path, way):
    for number in range(30):  # 2 ** 29 paths
        (tmp_path / f"in/{number}").mkdir(parents=True)
        for name in ("left", "right"):
            (tmp_path / f"in/{number}/{name}").symlink_to(f"../{number + 1}")
    write(tmp_path / "in/30/a.jsonl")
    with pytest.raises(ConfigurationError, match="the same folder"):
        way(tmp_path / "in/0")


@pytest.mark.parametrize("way", WAYS)
def test_links_in_a_loop_are_one_clear_error(tmp_path, way):
    write(tmp_path / "in/cat/a.jsonl")
    (tmp_path / "in/cat/one.jsonl").symlink_to("two")
    (tmp_path / "in/cat/two").symlink_to("one.jsonl")
    for path in (tmp_path / "in", tmp_path / "in/cat/two"):
        with pytest.raises(StorageError, match=r"Too many levels of symbolic links.*/in/cat/(one|two)"):
            way(path)


def test_a_link_that_no_pattern_matches_is_not_looked_at(tmp_path):
    write(tmp_path / "in/a.jsonl")
    (tmp_path / "in/loop").symlink_to("loop")
    (tmp_path / "in/up").symlink_to("..")
    assert [file.address for file in STORES.listed(f"{tmp_path}/in/*.jsonl", str)] == [
        f"{tmp_path}/in/a.jsonl"
    ]


@pytest.mark.parametrize("way", WAYS)
def test_linked_folders_are_followed(tmp_path, way):
    write(tmp_path / "away/deep/a.jsonl")
    write(tmp_path / "in/cat/b.jsonl")
    (tmp_path / "in/dog").symlink_to("../away")
    assert {os.path.basename(path) for path in way(tmp_path / "in")} == {"a.jsonl", "b.jsonl"}


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "s3://bucket/a\0b", "s3://bucket/\ud800", "a\0*"])
def test_a_path_that_nothing_can_have_is_refused(tmp_path, path):
    storage = yogadl.open_storage(tmp_path / "caches", foreign={"s3://bucket": {}} if "s3" in path else {})
    for call in (
        lambda: storage.adopt(path, "d", "1", format="jsonl"),
        lambda: storage.adopt([path], "d", "1", format="jsonl"),
        lambda: yogadl.image_folder(path),
    ):
        with pytest.raises(ConfigurationError, match="has characters that no path may have"):
            call()
