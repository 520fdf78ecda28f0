"""report: a page that says what a version is like, whatever is in it."""

import base64
import functools
import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import strange_sets
from cli_files import Bomb, tree_of
from html_page import pixels_of, read_page
from inside import Subject, _report, charts, fields, join_parts, page_of, records, sampling, set_constants

import yogadl


@pytest.fixture
def report(run, storage, tmp_path):
    """Build a version 1 of dataset d, if something is given; return the page on it."""

    def write(source=None, *words):
        if source is not None:
            storage.submit(source, "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
        path = tmp_path / "report.html"
        ended = run("report", "d", "1", *words, "-o", path)
        assert (ended.code, ended.err) == (0, "")
        content = path.read_bytes()
        path.unlink()
        return read_page(content)

    return write


def files_of(page):
    return [base64.b64decode(one.attributes["src"].partition(",")[2]) for one in page.all("img")]


def facts_of(page):
    return {name.text: value.text for name, value in zip(page.all("dt"), page.all("dd"), strict=True)}


def dots_of(page):
    (path,) = page.all("path")
    return [tuple(map(int, dot)) for dot in re.findall(r"M(\d+) (\d+)h0", path.attributes["d"])]


# The command


def test_it_writes_one_file_and_says_where(run, squares, root, tmp_path):
    before = tree_of(root)
    ended = run("report", "squares", "1", "-o", tmp_path / "new" / "page.html")
    content = (tmp_path / "new" / "page.html").read_bytes()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        f"Wrote a page of {len(content) / 1000:.1f} kB on squares 1:\n  {tmp_path}/new/page.html\n"
    )
    page = read_page(content)
    assert page.all("title")[0].text == "squares 1 - yogadl"
    assert [one.text for one in page.all("h2")] == [
        "Fields", "Records", "Shuffle", "On disk", "Where it came from", "Versions and tags"
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]
    assert tree_of(root) == before


def test_a_dash_is_stdout(run, squares):
    ended = run("report", "squares", "1", "-o", "-")
    assert (ended.code, ended.err) == (0, "")
    assert read_page(ended.out.encode()).all("h1")[0].text == "squares"


def test_a_script_gets_json_of_what_was_written(run, squares, root, tmp_path):
    path = tmp_path / "page.html"
    squares.tag("squares", "stable", "2")
    ended = run("report", "squares@stable", "-o", path, "--seed", "5", "--json")
    assert ended.json == {
        "storage": str(root), "id": "squares", "version": "2", "file": str(path),
        "size_bytes": path.stat().st_size, "seed": 5,
    }  # fmt: skip
    both = run("report", "squares", "1", "-o", "-", "--json")
    assert both.code == 2
    assert "give -o a file" in both.err


def test_a_file_that_is_there_stays(run, squares, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("mine")
    ended = run("report", "squares", "1", "-o", path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"yogadl: {path} is there already; give another name, or remove it first\n"
    assert path.read_text() == "mine"


def test_a_file_that_appears_meanwhile_stays(run, squares, tmp_path, monkeypatch):
    path, page_of = tmp_path / "page.html", _report.page_of

    def slow(subject):
        path.write_text("mine")
        return page_of(subject)

    monkeypatch.setattr(_report, "page_of", slow)
    run("report", "squares", "1", "-o", path).ends(1, "is there already")
    assert path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".tmp")] == []


def test_of_a_damaged_version_there_is_no_page(run, squares, root, tmp_path):
    for path in (root / "squares/parts").glob("*.mdb"):
        path.write_bytes(b"")
    run("report", "squares", "1", "-o", tmp_path / "page.html").ends(1, "truncated")
    assert not (tmp_path / "page.html").exists()


def test_a_version_beside_it_that_is_damaged_is_told(run, squares, root, tmp_path):
    (root / "squares/versions/2.json").write_text("{<b>")
    ended = run("report", "squares", "1", "-o", tmp_path / "page.html").ends(1)
    assert ended.err.startswith("yogadl: squares 2: ")
    page = read_page((tmp_path / "page.html").read_bytes())
    assert any(one.text.startswith("Version 2 can't be read") for one in page.all("p", "note"))


def test_a_tag_that_is_damaged_is_told(run, squares, root, tmp_path):
    squares.tag("squares", "stable", "1")
    (root / "squares/tags/stable/0000000001.tag").write_text("{<b>")
    ended = run("report", "squares", "1", "-o", tmp_path / "page.html").ends(1)
    assert ended.err.startswith("yogadl: squares has versions and tags that can't be listed: ")
    page = read_page((tmp_path / "page.html").read_bytes())
    assert any("the tag 'stable' names nothing" in one.text for one in page.all("p", "note"))


# What is in the dataset


def test_what_a_dataset_says_is_text_and_no_markup(report, monkeypatch):
    set_constants(monkeypatch, RECORDS=9)
    page = report(strange_sets.hostile())
    text = page.all("body")[0].text
    assert "<script>alert(1)</script>" in text
    for value in (r"nul\x00 bell\x07 escape\x1b[31m", r"right\u202eto left\u2066", r"half \ud800 and \udfff"):
        assert value in text
    for value in ("two\nlines\tand a tab", "שלום עולם", "日本語\u3000テスト"):
        assert value in text
    assert not set(text) & set("\0\x1b\u202e\u2066\u200f\ufeff\u2028\x85")


def test_ids_tags_arguments_and_code_are_text_and_no_markup(run, storage, root, tmp_path):
    strange = "a'b\"c&<i>"
    storage.submit({"x": [1]}, strange, strange)

    path = next((root / strange / "versions").iterdir())
    document = json.loads(path.read_text())
    document["builder"] |= {
        "function": strange_sets.MARKUP, "source": strange_sets.MARKUP * 9 + strange_sets.CONTROLS,
        "arguments": {strange_sets.MARKUP: strange_sets.TURNED, "x": {"<b>": 1}},
        "libraries": {"<b>": "<i>", "n": None}, "yogadl": ["<b>"],
    }  # fmt: skip
    path.write_text(json.dumps(document))
    storage.tag(strange, "t<b>&'", strange)
    page = read_page(run("report", strange, strange, "-o", "-").out.encode())
    assert page.all("title")[0].text == f"{strange} {strange} - yogadl"
    assert page.rows("Arguments")[1] == [
        strange_sets.MARKUP,
        "right\\u202eto left\\u2066 and\\u200f mark\\ufeff",
    ]
    assert page.all("pre")[0].text.startswith(strange_sets.MARKUP)
    assert page.rows("The versions, the newest first")[1][-1] == "t<b>&'"


@pytest.mark.parametrize("name", strange_sets.unusual())
def test_there_is_a_page_on_every_kind_of_record(report, name):
    source = strange_sets.unusual()[name]
    page = report(source)
    assert facts_of(page)["records"] == str(
        len(next(iter(source.values())) if isinstance(source, dict) else source)
    )


@pytest.mark.parametrize(
    ("source", "name"), [([{"": 1, "x": b"\x89PNG\r\n\x1a\n"}], '""'), ([1], "(the record)")]
)
def test_a_record_that_is_one_value_and_an_empty_key_have_names_of_their_own(report, source, name):
    page = report(source)
    assert page.rows("The fields of a record")[1][0] == name
    assert page.cards("fields")[0][0] == name
    assert page.all("dl", "record")[0].text.startswith(f"{name}1")
    assert page.rows("How each field is stored")[1][0] == name


def test_numbers_that_numpy_has_no_dtype_for_are_counted(report):
    pytest.importorskip("ml_dtypes")
    source = strange_sets.small_floats()
    cards = dict(report(source).cards("fields"))
    assert cards.keys() == source.keys()
    for name, text in cards.items():
        assert f"{name}, 2; 20 records" in text
        assert ("distinct4" if "int" in name else "mean1.5max3") in text


def test_of_no_records_it_says_so(squares):
    """Nobody can build such a version, but a damaged or foreign manifest may say so."""
    info = replace(squares.info("squares", "1"), records=0, parts=0, size_bytes=0)
    ref, log = squares.fetch("squares", "1")[:0], squares.log("squares")
    page = read_page(page_of(Subject(info, squares.location, ref, join_parts([]), log, 0)))
    assert [one.text for one in page.all("p", "form")] == ["int64; 0 records"] * 2
    assert facts_of(page)["a record"] == "-"
    said = {one.text for one in page.all("p", "note")}
    assert {"no records", "There are no records.", "There is nothing to shuffle."} <= said


def test_pickled_values_are_not_opened(report, tmp_path):
    page = report([{"x": 1, "bomb": Bomb(str(tmp_path / "made"))}])
    assert "pickled, so not opened: unpickling runs code" in dict(page.cards("fields"))["bomb"]
    assert not (tmp_path / "made").exists()


def test_a_string_of_ten_million_characters_is_cut(report):
    page = report([{"text": "<b>" * 3_333_333, "bytes": b"\0" * 10_000_000}])
    assert "9,999,999 characters" in page.all("dl", "record")[0].text
    assert len(page.all("body")[0].text) < 10_000
    assert page.all("div", "text")[0].text == "<b>" * 200 + "..."


@pytest.mark.parametrize("length", [599, 600, 601])
def test_a_text_is_shown_up_to_a_length(report, length):
    shown = report(["x" * length]).all("div", "text")[0].text
    assert shown == ("x" * length if length <= 600 else "x" * 600 + "...")


# Images


def test_arrays_of_images_are_drawn_with_their_pixels(report):
    image = np.random.default_rng(1).integers(0, 256, (5, 7, 4), np.uint8)
    shapes = {"rgb": image[:, :, :3], "clear": image, "one": image[:, :, :1], "grey": image[:, :, 0]}
    page = report([shapes])
    for content, (name, pixels) in zip(files_of(page), shapes.items(), strict=True):
        assert np.array_equal(pixels_of(content), pixels.reshape(5, 7, -1)), name
    assert [one.attributes["alt"].partition(":")[0] for one in page.all("img")] == [
        f"{name} of record 0" for name in shapes
    ]


def test_an_image_of_one_pixel_is_shown_and_one_of_five_channels_is_not(report):
    page = report(strange_sets.unusual()["images"])
    found = {one.attributes["alt"].partition(" ")[0]: one.attributes for one in page.all("img")}
    assert found.keys() == {"dot", "grey", "line", "clear"}
    assert (found["dot"]["width"], found["dot"]["class"]) == ("96", "pixels")
    assert "uint8[4x4x5] 0 to 0" in page.all("dl", "record")[0].text
    assert facts_of(page)["cut png"] == "8 B: begins as a PNG, but can't be read"
    assert facts_of(page)["cut jpeg"] == "4 B: begins as a JPEG, but can't be read"


def test_a_huge_image_is_shrunk_to_what_it_looks_like(report):
    image = np.zeros((2_500, 2_500), np.uint8)
    image[:, 1_250:] = 200
    (content,) = files_of(report([{"image": image}]))
    pixels = pixels_of(content)[:, :, 0]
    assert 128 <= len(pixels) <= 256
    middle = pixels.shape[1] // 2
    assert set(pixels[:, : middle - 1].ravel()) == {0}
    assert set(pixels[:, middle + 1 :].ravel()) == {200}


def test_files_of_images_are_shown_as_they_are(report):
    png = files_of(report([{"image": np.arange(48, dtype=np.uint8).reshape(4, 4, 3)}]))[0]
    jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xc0\x00\x0b\x08\x00\x10\x00\x20\x01abc\xff\xda\x00\x02rest\xff\xd9"
    page = report([{"png": png, "jpeg": jpeg, "text": b"<svg onload=alert(1)>"}])
    assert files_of(page) == [png, jpeg]
    assert [(one.attributes["width"], one.attributes["height"]) for one in page.all("img")] == [
        ("96", "96"), ("96", "48")
    ]  # fmt: skip
    assert "1 of 1 begins as a PNG" in dict(page.cards("fields"))["png"]
    assert [one.text for one in page.all("small")] == [f"PNG, {len(png)} B", f"JPEG, {len(jpeg)} B"]


def test_of_files_that_begin_as_images_it_says_how_many_and_no_more(report):
    notes = report([{"x": content} for content in [b"\xff\xd8\xff"] * 3 + [b"", b"\x89PNG\r\n\x1a\n"]]).all(
        "p", "note"
    )
    assert {"3 of 5 begin as a JPEG", "1 of 5 begins as a PNG"} <= {one.text for one in notes}


def test_broken_files_among_images_are_named(report):
    jpeg = b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x10\x00\x20\x01abc\xff\xda\x00\x02rest\xff\xd9"
    page = report([{"x": content, "y": 0} for content in [jpeg, jpeg, jpeg[:-1], jpeg, b"no"]])
    cards = dict(page.cards("fields"))
    assert "Broken, 2 of 5: record 2 is cut short, record 4 is no JPEG or PNG" in cards["x"]
    assert "Broken" not in cards["y"]


def test_a_page_has_so_many_images_and_no_more(report, monkeypatch):
    image = np.random.default_rng(1).integers(0, 256, (20, 20, 3), np.uint8)
    size_bytes = len(files_of(report([{"image": image}]))[0])
    for room, count in ((size_bytes - 1, 0), (size_bytes, 1), (3 * size_bytes, 3), (100 * size_bytes, 4)):
        set_constants(monkeypatch, MOST_IMAGE_BYTES=room)
        page = report([{"image": image}] * 4)
        assert len(page.all("img")) == count
        assert page.all("body")[0].text.count("this page has enough images") == 4 - count


# Which records, and how many


@pytest.mark.parametrize("count", [1, 2, 6, 7, 101])
def test_the_records_are_the_first_of_the_shuffle_with_that_seed(report, storage, count):
    page = report({"x": np.arange(count)}, "--seed", "3")
    order = storage.fetch("d", "1").stream(shuffle=True, shuffle_seed=3).indices().tolist()
    assert [one.text for one in page.all("h3")[1:]] == [f"Record {index}" for index in order[:6]]
    assert [one.text for one in page.all("dl", "record")] == [f"x{index}" for index in order[:6]]


@pytest.mark.parametrize("count", [1, 2, 101, 1999, 2000])
def test_the_picture_of_the_order_is_that_of_a_stream(report, storage, count):
    dots = dots_of(report({"x": np.arange(count)}, "--seed", "-7"))
    order = storage.fetch("d", "1").stream(shuffle=True, shuffle_seed=-7).indices()
    across, down = np.array(dots).T
    assert len(dots) == count
    assert np.abs(across - (12 + 976 * (np.arange(count) + 0.5) / count)).max() <= 0.5
    assert np.abs(down - (12 + 976 * (order + 0.5) / count)).max() <= 0.5


@pytest.mark.parametrize("count", [2001, 6000, 2**62])
def test_the_picture_of_a_large_order_has_a_bounded_number_of_dots(count):
    positions = charts.spread(count)
    assert len(positions) == charts.MOST_DOTS
    assert positions[0] == 0
    assert count - 1 - positions[-1] <= count // charts.MOST_DOTS + 1
    steps = np.diff(positions)
    assert steps.max() - steps.min() <= 1


@pytest.mark.parametrize(
    "count", [sampling.MOST_RECORDS - 1, sampling.MOST_RECORDS, 3 * sampling.MOST_RECORDS]
)
def test_values_are_those_of_a_bounded_sample(report, storage, count):
    page = report({"x": np.arange(count)}, "--seed", "2")
    order = storage.fetch("d", "1").stream(shuffle=True, shuffle_seed=2).indices()
    looked_at = order[: sampling.MOST_RECORDS]
    card = dict(page.cards("fields"))["x"]
    assert f"min{looked_at.min():,}" in card
    assert f"mean{looked_at.mean():.6g}" in card
    every = f"int64; {len(looked_at):,} of {count:,} records"
    assert (every if count > sampling.MOST_RECORDS else f"int64; {count:,} records") in card


@pytest.mark.parametrize("kind", ["fixed", "varying"])
def test_of_large_values_fewer_are_read(report, monkeypatch, kind):
    set_constants(monkeypatch, SAMPLING_MOST_BYTES=10_000, MOST_RECORDS_PER_READ=2)
    values = [np.full(100, 1.0) if kind == "fixed" else b"x" * (800 + n % 2) for n in range(100)]
    card = dict(report([{"x": value} for value in values]).cards("fields"))["x"]
    (looked_at,) = re.findall(r"; (\d+) of 100 records", card)
    assert 12 <= int(looked_at) <= 14


def test_the_same_seed_gives_the_same_page(report):
    source = {"x": np.random.default_rng(1).normal(size=(6000, 50))}
    first = report(source, "--seed", "4").all("main")[0].text
    assert report(None, "--seed", "4").all("main")[0].text == first
    assert report(None, "--seed", "5").all("main")[0].text != first


def test_of_thousands_of_fields_some_are_described_and_more_are_listed(report):
    page = report([{f"f{number}": number for number in range(1_100)}])
    assert len(page.cards("fields")) == fields.MOST_DESCRIBED
    assert len(page.rows("The fields of a record")) == 1 + fields.MOST_LISTED
    assert len(page.all("dl", "record")[0].text) < 20 * records.MOST_FIELDS
    notes = " ".join(one.text for one in page.all("p", "note"))
    assert "64 of 1,100 fields are described; 500 are listed" in notes
    assert "1,060 more fields are not shown" in notes
    assert "600 more fields are not listed" in notes


@pytest.mark.parametrize("count", [fields.MOST_DESCRIBED, fields.MOST_DESCRIBED + 1])
def test_as_many_fields_as_fit_are_described_without_a_word(report, count):
    page = report([{f"f{number}": number for number in range(count)}])
    assert len(page.cards("fields")) == fields.MOST_DESCRIBED
    assert any("fields are described" in one.text for one in page.all("p", "note")) == (
        count > fields.MOST_DESCRIBED
    )


@pytest.mark.parametrize("omitted", [0, 1])
def test_of_a_record_so_many_fields_are_shown_and_it_says_how_many_more_there_are(report, omitted):
    page = report([{f"f{number}": number for number in range(records.MOST_FIELDS + omitted)}])
    assert any("1 more fields are not shown" in one.text for one in page.all("p", "note")) == bool(omitted)


@pytest.mark.parametrize("count", [fields.MOST_UNFOLDED, fields.MOST_UNFOLDED + 1])
def test_a_long_table_of_fields_is_folded(report, count):
    page = report([{f"f{number}": number for number in range(count)}])
    titles = ["The fields of a record", "How each field is stored"]
    assert [len(page.rows(title)) for title in titles] == [1 + count] * 2
    folded = [one.text for one in page.all("summary")]
    assert folded == [f"{title}: {count} rows" for title in titles] * (count > fields.MOST_UNFOLDED)


# Where it lies, and where it came from


def test_it_says_how_each_field_is_stored(report, storage):
    page = report([{"x": n, "text": "a" * n} for n in range(1000)])
    header, number, text = page.rows("How each field is stored")
    assert header[:5] == ["field", "stored as", "blocks", "bytes", "bytes per record"]
    assert number[:5] == ["x", "fixed", "1", "8.0 kB", "8 B"]
    assert text[1] == "varying"
    assert facts_of(page)["files"].startswith("1 file, ")
    assert "on this machine" not in facts_of(page)


def test_of_a_cache_in_a_bucket_it_says_what_is_here(yoga, storage, root, tmp_path, monkeypatch):
    storage.submit(
        {"x": np.arange(20_000), "y": np.ones((20_000, 9))},
        "d",
        "1",
        build=yogadl.BuildOptions(part_bytes=200_000),
    )
    parts = storage.info("d", "1").parts
    where = "-s", f"file://{root}", "--mirror", tmp_path / "mirror"

    def page(*words):
        ended = yoga("report", "d", "1", "-o", "-", *where, *words)
        assert (ended.code, ended.err) == (0, "")
        return read_page(ended.out.encode())

    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    afar = page("--mirror-fill", "never")
    assert facts_of(afar)["on this machine"].startswith(f"0 of {parts} files, 0 B of ")
    assert facts_of(afar)["on this machine"].endswith("; the rest is read from the bucket by range")
    assert "int64; 128 of 20,000 records" in dict(afar.cards("fields"))["x"]
    monkeypatch.undo()
    here = page()
    assert facts_of(here)["on this machine"].startswith(f"{parts} of {parts} files, ")
    assert "int64; 4,096 of 20,000 records" in dict(here.cards("fields"))["x"]


def test_it_says_what_built_it(run, squares):
    page = read_page(run("report", "squares", "1", "-o", "-").out.encode())
    assert "make" in facts_of(page)["by"]
    assert {"blocks", "bytes", "share"} <= {one.text for one in page.all("th", "number")}
    assert page.rows("Arguments")[1:] == [["count", "11"]]
    assert "def make(count=11)" in page.all("pre")[0].text
    other = read_page(run("report", "more/texts", "2024-05", "-o", "-").out.encode())
    assert "The code that built it is not recorded." in [one.text for one in other.all("p", "note")]


def test_of_the_source_code_it_says_what_is_left_out(report, storage):
    @storage.cacheable("d", "1")
    @functools.cache
    def make(count: int = 3):
        """Say nothing."""
        # Count.
        return {"x": np.arange(count)}

    make()
    page = report()
    assert page.all("pre")[0].text == "def make(count=3):\n    return {'x': np.arange(count)}"
    assert page.all("summary")[0].text == (
        "Its source code, reformatted, without decorators, annotations, docstrings and comments"
    )


@pytest.mark.parametrize("length", [20_000, 20_001])
def test_source_code_is_shown_up_to_a_length(squares, length):
    info = squares.info("squares", "1")
    info = replace(info, builder={**info.builder, "source": "x" * length})
    subject = Subject(info, squares.location, squares.fetch("squares", "1"), join_parts([]), "no log", 0)
    shown = read_page(page_of(subject)).all("pre")[0].text
    assert shown == "x" * 20_000 + "..." * (length > 20_000)


def test_it_names_the_software_that_built_it_once(squares):
    info = squares.info("squares", "1")
    builder = {"yogadl": "1.0", "numpy": "2.1", "libraries": {"numpy": "2.1", "torch": "2.6"}}
    info = replace(info, builder=builder)
    subject = Subject(info, squares.location, squares.fetch("squares", "1"), join_parts([]), "no log", 0)
    assert facts_of(read_page(page_of(subject)))["with"] == "yogadl 1.0, numpy 2.1, torch 2.6"


def test_it_has_the_versions_and_tags_and_what_differs(run, squares):
    squares.append({"number": np.arange(3)}, "squares", dataset_version="3", base_version="2")
    for version in ("1", "3"):
        squares.tag("squares", "stable", version)
    squares.untag("squares", "stable")
    squares.tag("squares", "best", "3")
    page = read_page(run("report", "squares", "3", "-o", "-").out.encode())
    rows = page.rows("The versions, the newest first")
    assert [(row[0], row[2], row[-1]) for row in rows[1:]] == [
        ("3 (this one)", "1,003", "best"), ("2", "1,000", ""), ("1", "11", "")
    ]  # fmt: skip
    assert facts_of(page)["continues"] == "version 2, with 3 records more"
    moves = page.rows("The moves of tags, the newest first")
    assert [row[:2] for row in moves[1:]] == [
        ["best", "version 3"], ["stable", "removed"], ["stable", "version 3"], ["stable", "version 1"]
    ]  # fmt: skip
    assert "version '3' has the records of '2', and 3 more" in page.all("details")[0].text


@pytest.mark.parametrize("more", [0, 1])
def test_so_many_differences_are_listed_and_the_others_are_counted(report, storage, monkeypatch, more):
    def make(count):
        return [count.bit_length()]

    for version, count in (("2", 8), ("1", 9)):
        storage.cacheable("d", version)(make)(count)
    set_constants(monkeypatch, MOST_LINES=2 - more)
    first, second = (one.text for one in report().all("li"))
    assert first == "argument 'count': 8 -> 9"
    assert second == ("and 1 more" if more else "(their records are the same)")


@pytest.mark.parametrize("more", [0, 1])
def test_so_many_versions_are_listed_and_no_more(run, squares, monkeypatch, more):
    set_constants(monkeypatch, MOST_VERSIONS=2 - more)
    page = read_page(run("report", "squares", "1", "-o", "-").out.encode())
    assert len(page.rows("The versions, the newest first")) == 3 - more
    assert any("1 older versions are not listed" in one.text for one in page.all("p", "note")) == bool(more)


def test_json_values_are_on_the_page_as_text(run, storage, tmp_path):
    values = [{"role": "user", "text": "<b>&"}, None, [1, 2]] * 5
    storage.submit([{"tree": value} for value in values], "d", "1", json="tree")
    assert run("report", "d", "1", "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert html.escape('{"role":"user","text":"<b>&"}') in page
    assert "<b>&" not in page
