"""Caches of many parts: opened in few requests, and held in little memory."""

import numpy as np
import pytest
from inside import DatasetKey, LocalBucket, _parts, _remote_opening, open_table, set_constants, table_to_read

import yogadl
from yogadl.errors import CacheFormatError

COUNT = 300


def records():
    return [
        {"id": number, "name": f"n{number}" * (number % 7), "row": np.full(50, number % 251, np.uint8)}
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bucket")
    storage = yogadl.open_storage(folder)
    storage.submit(records(), "set", "1", build=yogadl.BuildOptions(part_bytes=300))
    assert storage.info("set", "1").parts > 40
    return folder


@pytest.fixture
def published(root):
    return yogadl.open_storage(root)._backend.catalogue.published(DatasetKey("set", "1"))


def check(ref):
    chosen = np.random.default_rng(0).permutation(COUNT)
    found, expected = ref.gather(chosen), records()
    assert found["id"].tolist() == chosen.tolist()
    assert found["name"] == [expected[number]["name"] for number in chosen]
    assert [row.tolist() for row in found["row"]] == [expected[number]["row"].tolist() for number in chosen]


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("way", ["a folder", "no mirror", "an empty mirror", "a mirror in part", "a mirror"])
def test_a_large_part_table_is_held_in_another_way_and_says_the_same(
    root, published, tmp_path, monkeypatch, way, over, checks
):
    set_constants(monkeypatch, LARGE_TABLE_BYTES=published.manifest.table_bytes + over)
    url, options = root.as_uri(), {"mirror": yogadl.Mirror(tmp_path, fill="never")}
    if way in ("a mirror", "a mirror in part"):
        yogadl.open_storage(url, mirror=tmp_path).fetch("set", "1")
    if way == "a mirror in part":
        for part in sorted(tmp_path.rglob("*.mdb"))[::2]:
            part.unlink()
    if way == "no mirror":
        options = {"mirror": None}
    storage = yogadl.open_storage(root) if way == "a folder" else yogadl.open_storage(url, **options)
    check(storage.fetch("set", "1", check=checks))


def test_a_table_that_is_held_has_what_the_same_in_all_parts_once(root, published):
    root, manifest = yogadl.open_storage(root)._backend.root, published.manifest
    whole = open_table(root, manifest)
    held = whole.compacted(whole.index_names())
    assert list(held.sha256) == list(whole.sha256)
    assert held.index_sha256[3] == whole.index_sha256[3]
    assert list(held.index_sha256[2:5]) == list(whole.index_sha256[2:5])
    arrays = {id(array): array for field in held.fields for array in vars(field).values() if len(array) > 1}
    for field, other in zip(held.fields, whole.fields, strict=True):
        for name, array in vars(other).items():
            np.testing.assert_array_equal(vars(field)[name], array)
            assert vars(field)[name].dtype == array.dtype
    own = [array for array in arrays.values() if array.strides[0]]
    assert {array.tobytes() for array in own} != set()
    assert len({array.tobytes() for array in own}) == len(own)  # none is there twice
    assert not any((array == array[:1]).all() for array in own)
    assert not any(array.flags.writeable for array in arrays.values())


def test_names_of_indexes_are_read_again_when_one_is_asked_for(root, published, monkeypatch):
    set_constants(monkeypatch, LARGE_TABLE_BYTES=0)
    root, manifest = yogadl.open_storage(root)._backend.root, published.manifest
    expected = list(open_table(root, manifest).index_sha256)
    held, asked = table_to_read(root, manifest), []
    monkeypatch.setattr(_parts, "open_table", lambda *both: asked.append(both) or open_table(*both))
    assert len(held.index_sha256) == len(held) == manifest.parts
    assert not asked
    assert [held.index_sha256[part] for part in range(len(held))] == expected
    assert list(held.index_sha256[1:4]) == expected[1:4]
    assert len(asked) == 1


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
def test_names_are_given_one_after_the_other_as_they_are_by_number(root, published, monkeypatch, count):
    set_constants(monkeypatch, SUMS_AT_ONCE=4)
    names = open_table(yogadl.open_storage(root)._backend.root, published.manifest).sha256[:count]
    assert list(names) == [names[number] for number in range(count)]
    assert len(set(names)) == count


@pytest.fixture
def asked(monkeypatch):
    """What is asked of buckets: which verb, and of which object."""
    found = []
    for verb in ("get", "head", "list"):
        before = getattr(LocalBucket, verb)

        def noted(self, name="", *more, _before=before, _verb=verb, **options):
            found.append((_verb, name))
            return _before(self, name, *more, **options)

        monkeypatch.setattr(LocalBucket, verb, noted)
    return found


@pytest.mark.parametrize("few", [{"FEW_RANGE_BYTES": 4096}, {}], ids=["in ranges", "at once"])
@pytest.mark.parametrize("mirrored", [False, True])
def test_opening_takes_two_requests_unless_the_table_is_huge(
    root, published, tmp_path, monkeypatch, asked, few, mirrored
):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0, **few)
    ref = yogadl.open_storage(root.as_uri(), mirror=tmp_path if mirrored else None).fetch("set", "1")
    assert published.manifest.table_bytes > 2 * 4096
    ranges = -(-published.manifest.table_bytes // 4096)
    assert len(asked) == (2 + ranges if mirrored and few else 2), asked
    monkeypatch.undo()
    check(ref)


def test_a_part_of_a_mirror_that_was_cut_short_is_downloaded_again(root, tmp_path):
    storage = yogadl.open_storage(root.as_uri(), mirror=tmp_path)
    storage.fetch("set", "1")
    part = sorted(tmp_path.rglob("*.mdb"))[3]
    part.write_bytes(part.read_bytes()[:-1])
    check(yogadl.open_storage(root.as_uri(), mirror=tmp_path).fetch("set", "1"))


def test_the_store_is_waited_for_as_ever_where_the_mirror_has_the_manifest_but_not_all_parts(
    root, tmp_path, monkeypatch
):
    yogadl.open_storage(root.as_uri(), mirror=tmp_path).fetch("set", "1")
    next(iter(tmp_path.rglob("*.mdb"))).unlink()
    before, tries = LocalBucket.get, []

    def away_at_first(self, name, *more, **options):
        tries.append(name)
        if len(tries) == 1:
            raise _remote_opening.UnavailableError(5, "away")
        return before(self, name, *more, **options)

    monkeypatch.setattr(LocalBucket, "get", away_at_first)
    check(yogadl.open_storage(root.as_uri(), mirror=tmp_path).fetch("set", "1"))
    assert tries[0] == tries[1] == "set/versions/1.json"


@pytest.mark.parametrize("what", ["missing", "cut short", "a link"])
def test_a_part_of_a_folder_that_is_not_there_is_named_at_once(tmp_path, what):
    storage = yogadl.open_storage(tmp_path)
    storage.submit(records(), "set", "1", build=yogadl.BuildOptions(part_bytes=300))
    part = sorted(tmp_path.rglob("*.mdb"))[7]
    content = part.read_bytes()
    part.unlink()
    if what == "cut short":
        part.write_bytes(content[:-4096])
    elif what == "a link":
        (tmp_path / "elsewhere").write_bytes(content)
        part.symlink_to(tmp_path / "elsewhere")
    words = {"missing": "is missing", "cut short": "truncated", "a link": "is a link"}
    with pytest.raises(CacheFormatError, match=words[what]) as caught:
        yogadl.open_storage(tmp_path).fetch("set", "1")
    assert part.name in str(caught.value)
