"""Versions, worked out or given by hand: what is said of their differences."""

import logging
import threading

import numpy as np
import pytest
from inside import Difference
from versioned_project import auto, squares

import yogadl
from yogadl.errors import DatasetNotFoundError


def test_explain_names_lines_values_and_arguments(storage, load):
    one = storage.cacheable("d", "auto")(load().build)
    one(3)
    edits = (
        ("work", "return v * 2", "return v * 3"),
        ("data", "SCALE = 2", "SCALE = 5"),
        ("settings", "SIZE = 32", "SIZE = 64"),
        ("data", "counter(5)", "counter(6)"),
        ("data", "Augment(3,", "Augment(4,"),
        ("data", "+ late(1)", "+ late(2)"),
    )
    first = storage.versions("d")[0]
    storage.cacheable("d", "auto")(load(*edits).build)(4)
    (second,) = set(storage.versions("d")) - {first}
    explained = storage.explain("d", first, second)
    assert (explained.id, explained.version, explained.other) == ("d", first, second)
    found = {difference.what: (difference.before, difference.after) for difference in explained.differences}
    assert found.pop("function work.helper") == ("'return v * 2'", "'return v * 3'")
    before, after = found.pop("function data.build")
    assert "late(1)" in before
    assert "late(2)" in after
    assert found.pop("argument 'n'") == ("3", "4")
    assert found.pop("argument 'scale'") == ("2", "5")
    assert found.pop("global data.settings.SIZE") == ("32", "64")
    assert found.pop("closure variable 'step' of data.counter.<locals>.count") == ("5", "6")
    assert "amount=3" in found.pop("global data.AUGMENT")[0]
    assert found == {}
    lines = str(explained).splitlines()
    assert lines[0] == f"'d': version '{first}' -> '{second}'"
    assert "  global data.settings.SIZE: 32 -> 64" in lines
    assert "  (their records differ)" in lines


def test_explain_says_when_there_is_nothing_to_say(storage):
    storage.cacheable("d", "1")(squares)(3)
    storage.cacheable("d", "2")(squares)(3)
    storage.submit([1], "d", "3")
    assert "both were built by the same code with the same arguments" in str(storage.explain("d", "1", "2"))
    assert "their records are the same" in str(storage.explain("d", "1", "2"))
    explained = storage.explain("d", "1", "3")
    assert explained.differences == ()
    assert "version '3' was not built by storage.cacheable" in str(explained)
    with pytest.raises(DatasetNotFoundError):
        storage.explain("d", "1", "4")


@pytest.mark.parametrize("argument", [3, np.int64(3)])
def test_a_version_by_hand_and_one_worked_out_of_the_same_have_no_differences(storage, argument):
    for version in ("1", "auto"):
        storage.cacheable("d", version)(squares)(argument)
    assert storage.explain("d", *storage.versions("d")).differences == ()


def test_the_version_of_this_library_is_told_once_at_most(storage):
    storage.cacheable("d", "1")(lambda: [yogadl.__version__])()
    storage.cacheable("d", "2")(lambda: ["else"])()
    assert not any(note.startswith("yogadl") for note in storage.explain("d", "1", "2").notes)


def test_what_looks_the_same_differs_without_being_shown_twice():
    assert str(Difference("argument 'x'", "an array", "an array")) == "argument 'x': differs"


def test_the_log_says_why_another_version_is_built(storage, caplog):
    build = storage.cacheable("d", "auto")(squares)
    with caplog.at_level(logging.INFO, "yogadl"):
        build(3)
        assert caplog.messages == []
        build(4)
    (message,) = [message for message in caplog.messages if "it differs from" in message]
    assert "argument 'n': 3 -> 4" in message


def test_what_may_be_a_secret_is_not_kept(storage, load):
    data = """
        API_TOKEN = "abc123"

        def build(password="hunter2"):
            return [len(API_TOKEN + password)]
    """
    versions = auto(storage, load(data=data).build)
    assert "abc123" not in str(storage.info("d", versions[0]).builder["ingredients"])
    assert "hunter2" not in str(storage.info("d", versions[0]).builder["arguments"])
    assert len(auto(storage, load(data=data.replace("abc123", "abc124")).build)) == 2


# Versions given by hand.


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("work", "return v * 2", "return v * 3"), "function work.helper: 'return v * 2' -> 'return v * 3'"),
        (("settings", "SIZE = 32", "SIZE = 64"), "global data.settings.SIZE: 32 -> 64"),
        (("data", '"y": 2', '"y": 3'), "global data.FIELDS: {'x': 1, 'y': 2} -> {'x': 1, 'y': 3}"),
        (
            ("work", "def decode(v, shift=0)", "def decode(v, shift=1)"),
            "default of 'shift' in work.decode: 0 -> 1",
        ),
    ],
)
def test_the_warning_of_a_given_version_sees_what_the_function_uses(storage, load, edit, says):
    storage.cacheable("d", "1")(load().build)()
    with pytest.warns(UserWarning, match="built by other code or arguments") as caught:
        storage.cacheable("d", "1")(load(edit).build)()
    (warning,) = caught
    assert says in str(warning.message)
    assert "use the version '2'" in str(warning.message)
    assert warning.filename == __file__


def test_the_warning_of_a_given_version_does_not_see_what_the_build_itself_changes(storage):
    seen, lock = [], threading.Lock()

    @storage.cacheable("d", "1")
    def build():
        with lock:
            seen.append(len(seen))
        return [1]

    build()
    seen.append("more")
    build()
    assert len(seen) == 2
