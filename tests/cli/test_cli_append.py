"""`yogadl append`: a version of all records of another, and those of a function."""

import pytest

CODE = """
def squares(first=0, count=10):
    for n in range(first, first + count):
        yield {"n": n, "square": n * n}

def items(first=10):
    return [{"n": n, "square": n * n} for n in range(first, first + 100)]
"""


pytestmark = pytest.mark.usefixtures("forgets_modules")


@pytest.fixture
def append(run, file, build):
    """Append what a function returns to version 1, which is built, as version 2."""
    assert build("squares").code == 0
    return lambda name, *words, version="2", base="1": run(
        "append", f"{file}:{name}", "d", version, base, *words
    )


@pytest.mark.parametrize("words", [["squares", "--arg", "first=10"], ["items"], ["items", "--workers", "2"]])
def test_the_records_of_a_function_follow_those_of_the_base(append, storage, words):
    ended = append(*words).ends(0)
    assert ended.out.startswith("Built d 2 in ")
    found = storage.info("d", "2")
    assert storage.fetch("d", "2").gather(range(found.records))["n"].tolist() == list(range(found.records))
    assert found.earlier[-1].version == "1"
    assert found.builder["function"] == f"data.{words[0]}"
    storage.submit([{"n": n, "square": n * n} for n in range(found.records)], "d", "whole")
    assert storage.info("d", "whole").fingerprint == found.fingerprint


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_version_that_is_there_is_served_unless_it_is_to_be_replaced(append, storage):
    append("squares", "--arg", "first=10")
    before = storage.info("d", "2").digest
    ended = append("squares", "--arg", "first=10")
    assert (ended.code, ended.err) == (0, "yogadl: nothing was built; --replace builds it again\n")
    assert ended.out.startswith("d 2 is there already")
    ended = append("squares", "--arg", "first=20")
    assert "argument 'first': 10 -> 20" in ended.err
    assert storage.info("d", "2").digest == before
    assert append("squares", "--arg", "first=20", "--replace").out.startswith("Built d 2 in ")
    assert storage.fetch("d", "2")[10]["n"] == 20


def test_the_base_may_be_a_tag(append, storage):
    storage.tag("d", "stable", "1")
    assert append("items", base="stable").code == 0
    assert storage.info("d", "2").earlier[-1].version == "1"


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_job_that_is_repeated_after_its_tag_was_moved_finds_the_version_there(append, storage):
    storage.tag("d", "latest", "1")
    assert append("items", base="latest").code == 0
    storage.tag("d", "latest", "2")
    before = storage.info("d", "2").digest
    ended = append("items", base="latest")
    assert (ended.code, ended.err) == (0, "yogadl: nothing was built; --replace builds it again\n")
    append("items", "--replace", base="latest").ends(
        1, "can't be appended to version '2' (the tag 'latest'), which is the same version"
    )
    assert storage.info("d", "2").digest == before
    assert append("items", "--replace").code == 0


@pytest.mark.filterwarnings("always::UserWarning")
@pytest.mark.parametrize(
    ("before", "asked", "says"),
    [
        ("", "1", ""),
        ("", "same", ""),
        ("delete", "1", ""),
        ("", "other", "continues version '1', but this call appends to 'other'."),
        ("", "tag", "continues version '1', but this call appends to 'other'."),
        ("", "absent", "continues version '1', but this call appends to 'absent'."),
        (
            "submit",
            "1",
            "continues version '1' as it was before it was replaced, but this call appends to '1'.",
        ),
        ("whole", "1", "was not appended to any version, but this call appends to '1'."),
    ],
)
def test_a_version_that_continues_another_base_is_served_with_a_warning(append, storage, before, asked, says):
    storage.compact("d", "1", "same")
    storage.submit([{"n": 7, "square": 49}], "d", "other")
    storage.tag("d", "tag", "other")
    append("items")
    if before == "delete":
        storage.delete("d", "1")
    elif before:
        storage.submit([{"n": 7, "square": 49}], "d", "1" if before == "submit" else "2")
    digest = storage.info("d", "2").digest
    ended = append("items", base=asked).ends(0)
    assert storage.info("d", "2").digest == digest
    told = [line for line in ended.err.splitlines() if "this call appends to" in line]
    assert len(told) == bool(says)
    assert all(f"'d' version '2' {says}" in line for line in told)
