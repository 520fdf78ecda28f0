"""Arguments of clones before 0.2.0: an error that says what to give now, and a page that lists them."""

from pathlib import Path

import pytest
from inside import MOVED

import yogadl
from yogadl.errors import ConfigurationError

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "migrating.md"
# The functions that had the arguments; `base_version` is one of `append` as before.
CALLS = {
    "mirror": [lambda _, **old: yogadl.open_storage("caches", **old)],
    "limits": [lambda _, **old: yogadl.open_storage("s3://bucket", **old)],
    "lease": [lambda _, **old: yogadl.open_storage("caches", shared=True, **old)],
    "build": [
        lambda s, **old: s.submit([1], "d", "1", **old),
        lambda s, **old: s.cached([1], "d", **old),
        lambda s, **old: s.cacheable("d", "1", **old),
        lambda s, **old: s.append([1], "d", "2", base_version="1", **old),
        lambda s, **old: s.compact("d", "1", "2", **old),
        lambda s, **old: s.recompress("d", "1", "2", codec=None, **old),
        lambda s, **old: s.adopt("x", "d", "1", **old),
        lambda s, **old: s.refresh("d", "1", "2", **old),
    ],
    "records": [
        lambda s, **old: s.submit([1], "d", "1", **old),
        lambda s, **old: s.cached([1], "d", **old),
        lambda s, **old: s.cacheable("d", "1", **old),
        lambda s, **old: s.append([1], "d", "2", base_version="1", **old),
        lambda s, **old: s.begin("d", "1", partitions=1, **old),
    ],
    "files": [lambda s, **old: s.adopt("x", "d", "1", **old)],
    "extra": [lambda _, **old: yogadl.from_source([1]).packed(5, fields="tokens", **old)],
    "new_version": [lambda s, **old: s.compact("d", "2", **old)],
}
CASES = [(old, new, call) for old, new in MOVED for call in CALLS[new.partition("=")[0]]]
LISTED = [(old, new) for old, new in MOVED if not new.startswith("new_version")]


@pytest.mark.parametrize(("old", "new", "call"), CASES)
def test_an_old_argument_is_an_error_that_names_the_new_one(tmp_path, monkeypatch, old, new, call):
    monkeypatch.chdir(tmp_path)
    storage = yogadl.open_storage("caches")
    with pytest.raises(ConfigurationError, match=rf"has no argument '{old}' any more: give ") as caught:
        call(storage, **{old: 1})
    assert str(caught.value).endswith(new)
    assert not (tmp_path / "caches").exists()


@pytest.mark.parametrize(("old", "new"), LISTED)
def test_the_page_lists_what_is_given_now(old, new):
    assert f"`{old}=` | `{new}` |" in PAGE.read_text("utf-8")


def test_the_page_has_no_other_arguments():
    listed = {line.split("`")[1] for line in PAGE.read_text("utf-8").splitlines() if "=` | `" in line}
    assert listed == {f"{old}=" for old, _ in LISTED}


@pytest.mark.parametrize("new", [new for _, new in LISTED])
def test_what_is_given_now_is_an_entry_of_a_value(new):
    value, _, entry = new.partition("=")[2].removeprefix("yogadl.").partition("(")
    assert entry.removesuffix("=...)") in vars(getattr(yogadl, value)())


def test_what_the_storage_of_a_clone_ran_before_is_refused_with_no_version(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit([1, 2], "d", "1")
    with pytest.raises(ConfigurationError, match=r"compact\(id, OLD, NEW\)"):
        storage.compact("d", "2", base_version="1")
    assert storage.versions("d") == ["1"]
