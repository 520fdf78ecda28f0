"""What the page of `report` says of values: numbers of any size, texts, images."""

import itertools
import statistics
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest
from html_page import pixels_of, read_page
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    BARS,
    MOST_CLASSES,
    MOST_FAULTS,
    MOST_FILE_BYTES,
    MOST_LABEL,
    MOST_SIDE,
    MOST_VALUES,
    Image,
    bars_of,
    classes,
    element,
    fault_of,
    faults_of,
    histogram,
    image_of_array,
    image_of_file,
    is_image,
    kind_of,
    lines,
    summary_of,
    text,
)
from inside import summary as _summary

from yogadl import Leaf


def summarized(values, leaf=None):
    values = np.asarray(values)
    return summary_of(leaf or Leaf(values.dtype.name, values.shape[1:]), values, 0)


def figures(values):
    (found,) = summarized(values).distributions
    return dict(found.figures)


# Numbers


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_each_integer_is_in_one_bar(values):
    check_bars(np.array(values, np.int64), sorted(values))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_each_integer_without_a_sign_is_in_one_bar(values):
    check_bars(np.array(values, np.uint64), sorted(values))


def check_bars(array, values):
    bars = bars_of(array)
    edges = [int(edge.replace(",", "")) for edge in bars.edges]
    assert 1 <= len(bars.counts) <= BARS
    *steps, last = [high - low for low, high in itertools.pairwise(edges)]
    assert (edges[0], edges[-1]) == (values[0], values[-1])
    assert len(set(steps)) <= 1
    assert last < min(steps, default=1)
    expected = [
        sum(low <= value < high for value in values)
        for low, high in itertools.pairwise([*edges[:-1], edges[-1] + 1])
    ]  # fmt: skip
    assert list(bars.counts) == expected
    assert sum(expected) == len(values)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_each_float_is_in_one_bar(values):
    bars = bars_of(np.array(values))
    assert sum(bars.counts) == len(values)
    assert len(bars.edges) == len(bars.counts) + 1
    assert float(bars.edges[0]) == pytest.approx(min(values), rel=1e-5, abs=1e-300)
    assert float(bars.edges[-1]) == pytest.approx(max(values), rel=1e-5, abs=1e-300)


@given(st.lists(st.floats(), min_size=1))
def test_figures_are_those_of_the_finite_numbers(values):
    found, finite = figures(values), sorted(value for value in values if np.isfinite(value))
    assert found.get("NaN", "0") == str(sum(np.isnan(values)))
    assert found.get("infinite", "0") == str(values.count(np.inf))
    assert found.get("minus infinite", "0") == str(values.count(-np.inf))
    if not finite:
        assert "min" not in found
    elif finite[0] == finite[-1]:
        assert found["all"] == f"{finite[0]:.6g}"
    else:
        assert found["min"] == f"{finite[0]:.6g}"
        assert found["median"] == f"{float(statistics.median(map(Fraction, finite))):.6g}"
        assert found["max"] == f"{finite[-1]:.6g}"
        mean, rounding = float(found["mean"]), 1e-5 * max(map(abs, finite)) + 1e-300
        assert finite[0] - rounding <= mean <= finite[-1] + rounding


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, unique=True))
def test_the_median_of_integers_is_exact(values):
    found, middle = figures(np.array(values))["median"], statistics.median(map(Fraction, values))
    assert Fraction(found.replace(",", "")) == middle


def test_the_median_of_an_even_number_is_between_the_two_in_the_middle():
    assert figures([1, 2, 3, 4])["median"] == "2.5"
    assert figures([-1_500_000, -4, -1, 7])["median"] == "-2.5"
    assert figures([1_000_000, 3_000_000])["median"] == "2,000,000"
    assert figures([0.5, 1.0, 2.0, 4.0])["median"] == "1.5"
    assert figures([0.5, 1.0, 4.0])["median"] == "1"
    assert figures(np.array(["2024-01-01", "2024-01-04"], "datetime64[D]"))["median"] == "2024-01-02"


def test_the_mean_is_that_of_numpy():
    values = np.random.default_rng(0).normal(5, 2, 1001)
    assert figures(values)["mean"] == f"{values.mean():.6g}"
    assert figures([1.7e308, 1.5e308])["mean"] == "1.6e+308"


@pytest.mark.parametrize("count", [2, MOST_CLASSES - 1, MOST_CLASSES, MOST_CLASSES + 1, 3 * MOST_CLASSES])
def test_few_integers_are_counted_one_by_one(count):
    values = np.repeat(1000 * np.arange(count), np.arange(1, count + 1))
    (found,) = summarized(values).distributions
    if count <= MOST_CLASSES:
        assert found.classes == tuple((f"{1000 * n:,}", n + 1) for n in range(count))
        assert found.bars is None
    else:
        assert found.classes is None
        assert sum(found.bars.counts) == len(values)


@pytest.mark.parametrize("count", [2, MOST_CLASSES, MOST_CLASSES + 1])
def test_few_short_texts_are_counted_the_most_frequent_first(count):
    texts = [f"t{n}" for n in range(count) for _ in range(n + 1)]
    found = summary_of(Leaf("str"), texts, 0).distributions
    expected = tuple((f"t{n}", n + 1) for n in reversed(range(count)))
    assert [one.classes for one in found if one.title == "values"] == [expected] * (count <= MOST_CLASSES)
    assert [one.title for one in found][-1] == "characters"
    long = summary_of(Leaf("bytes"), [b"x" * 40, b"x" * 41], 0).distributions
    assert [one.title for one in long] == ["bytes"]


def test_a_text_of_which_nothing_is_seen_is_in_quotes():
    found = summary_of(Leaf("str"), ["", "", "", " \u3000", " \u3000", "a b"], 0).distributions[0]
    assert found.classes == (('""', 3), ('" \u3000"', 2), ("a b", 1))
    assert summary_of(Leaf("bytes"), [b""], 0).distributions[0].classes == (("b''", 1),)


@pytest.mark.parametrize("count", [MOST_VALUES - 1, MOST_VALUES, MOST_VALUES + 1, 3 * MOST_VALUES])
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_beyond_so_many_values_some_are_chosen(count, kind):
    if kind == "numbers":
        found = summarized(np.arange(count).reshape(1, -1))
    else:
        column = [np.array(["x" * 99] * count, object)]
        found = summary_of(Leaf("str", (count,)), column, 0)
    assert bool(found.notes) == (count > MOST_VALUES)
    if found.notes:
        assert found.notes == (f"{MOST_VALUES:,} of the sample's {count:,} values, chosen at random",)
    if kind == "numbers":
        assert sum(found.distributions[0].bars.counts) == min(count, MOST_VALUES)


@pytest.mark.parametrize("seed", [-1, 0, 2**64, -(10**30)])
def test_any_seed_chooses(seed):
    values = np.arange(MOST_VALUES + 1)
    found = summary_of(Leaf("int64", ()), values, seed).distributions[0]
    again = summary_of(Leaf("int64", ()), values, seed).distributions[0]
    assert found == again


def test_sizes_that_vary_are_told_axis_by_axis():
    images = [np.zeros((n, 2 * n, 3), np.uint8) for n in range(1, 30)]
    found = {
        one.title: dict(one.figures)
        for one in summary_of(Leaf("uint8", (None, None, 3)), images, 0).distributions
    }
    assert (found["size of axis 0"]["min"], found["size of axis 0"]["max"]) == ("1", "29")
    assert (found["size of axis 1"]["min"], found["size of axis 1"]["max"]) == ("2", "58")
    vectors = summary_of(Leaf("float32", (None,)), [np.zeros(n, np.float32) for n in (3, 5)], 0).distributions
    assert [one.title for one in vectors] == ["values", "length"]
    assert vectors[1].classes == (("3", 1), ("5", 1))
    unknown = summary_of(
        Leaf("int8", None), [np.zeros((2, 2), np.int8), np.zeros((), np.int8)], 0
    ).distributions
    assert unknown[1].classes == (("1", 1), ("4", 1))


def test_times_are_told_as_times():
    found = figures(np.array(["2024-02-29", "NaT", "1969-07-20", "2026-11-23"], "datetime64[D]"))
    assert found == {"min": "1969-07-20", "median": "2024-02-29", "max": "2026-11-23", "no time": "1"}
    assert _summary._mean(np.array([2, 4])) == 3


def test_the_description_of_a_histogram_says_where_most_are():
    drawn = histogram("x: values", bars_of(np.array([1, 1, 1, 5])))
    page = f"<html><body><h1>x</h1>{drawn}</body></html>"
    assert "5 bars from 1 to 5; the highest stands for 3 values from 1 to below 2" in page
    assert "<title>1 from 5 to 5</title>" in page
    read_page(f"<!DOCTYPE html>\n{page}".encode())


@pytest.mark.parametrize("length", [MOST_LABEL - 1, MOST_LABEL, MOST_LABEL + 1, 3 * MOST_LABEL])
def test_the_label_of_a_class_is_cut_where_it_is_long_and_then_a_title_has_all(length):
    name = "<" * length
    page = read_page(f"<!DOCTYPE html>\n<h1>x</h1>{classes('x', [(name, 2)])}".encode())
    assert page.rows("x")[1] == ["<" * min(length, MOST_LABEL) + "..." * (length > MOST_LABEL), "", "2"]
    assert [one.attributes.get("title") for one in page.all("span")] == [name] * (length > MOST_LABEL)


def test_the_bar_of_a_class_is_as_long_as_its_share_of_the_widest_cell():
    page = read_page(f"<!DOCTYPE html>\n<h1>x</h1>{classes('x', [('a', 4), ('b', 1)])}".encode())
    bars = [one.attributes for one in page.all("svg", "share")]
    assert [bar["preserveaspectratio"] for bar in bars] == ["none"] * 2  # its cell decides how wide it is
    assert [one.attributes["width"] for one in page.all("rect")] == ["100", "100.00", "100", "25.00"]


# Images


@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from([None, 1, 3, 4]))
def test_a_small_image_is_its_own_pixels_and_a_large_one_is_shrunk(height, width, channels):
    shape = (height, width) if channels is None else (height, width, channels)
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert is_image(Leaf("uint8", shape), image)
    found = image_of_array(image)
    pixels = pixels_of(found.content)
    assert pixels.shape[:2] == (found.height, found.width)
    assert max(found.height, found.width) <= MOST_SIDE
    if max(height, width) <= MOST_SIDE:
        assert np.array_equal(pixels.reshape(image.shape), image)


@pytest.mark.parametrize(
    "side", [MOST_SIDE - 1, MOST_SIDE, MOST_SIDE + 1, 3 * MOST_SIDE, 4 * MOST_SIDE + 1, 9999]
)
@pytest.mark.parametrize("other", [1, 2, 300])
def test_what_is_shrunk_keeps_its_brightness_and_about_its_shape(side, other):
    image = np.full((other, side, 3), (10, 100, 250), np.uint8)
    found = image_of_array(image)
    assert {tuple(pixel) for pixel in pixels_of(found.content).reshape(-1, 3)} == {(10, 100, 250)}
    assert MOST_SIDE // 2 <= found.width <= MOST_SIDE
    assert abs(found.height - other * found.width / side) <= 1


@pytest.mark.parametrize("other", [1, 300, 2100])
def test_a_wide_image_is_shrunk_as_a_tall_one(other):
    wide = np.random.default_rng(0).integers(0, 256, (other, 9999, 3), np.uint8)
    shrunk, turned = (pixels_of(image_of_array(image).content) for image in (wide, wide.swapaxes(0, 1)))
    assert np.array_equal(shrunk, turned.swapaxes(0, 1))


@pytest.mark.parametrize("shape", [(3,), (0, 4), (4, 0, 3), (2, 2, 2), (2, 2, 5), (1, 2, 2, 3), (2, 2, 0)])
def test_what_has_another_shape_is_no_image(shape):
    assert not is_image(Leaf("uint8", shape), np.zeros(shape, np.uint8))
    assert not is_image(Leaf("int8", (2, 2)), np.zeros((2, 2), np.int8))


PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def png(width, height, size_bytes=100):
    header = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return (content + PNG_END).ljust(size_bytes, b"\0")


def jpeg(width, height, size_bytes=100, before=b"\xff\xe0\x00\x04ab"):
    frame = struct.pack(">HHBHHB", 0xFFC0, 11, 8, height, width, 1)
    return (b"\xff\xd8" + before + frame + b"abc\xff\xda\0\2rest\xff\xd9").ljust(size_bytes, b"\0")


@pytest.mark.parametrize(
    "size_bytes", [MOST_FILE_BYTES - 1, MOST_FILE_BYTES, MOST_FILE_BYTES + 1, 3 * MOST_FILE_BYTES]
)
def test_a_file_is_part_of_a_page_up_to_a_size(size_bytes):
    for kind, make in (("PNG", png), ("JPEG", jpeg)):
        content = make(8, 9, size_bytes)
        fits = size_bytes <= MOST_FILE_BYTES
        expected = Image(kind, content, 8, 9) if fits else f"a {kind}, too large for this page"
        assert image_of_file(kind, content) == expected


@pytest.mark.parametrize(("width", "height"), [(2048, 2049), (2**16 - 1, 2**16 - 1)])
def test_a_file_that_says_that_it_is_huge_is_not_shown(width, height):
    for kind, make in (("PNG", png), ("JPEG", jpeg)):
        assert isinstance(image_of_file(kind, make(2048, 2048)), Image)
        assert image_of_file(kind, make(width, height)) == f"a {kind}, too large for this page"


BROKEN = [
    *(("PNG", png(8, 9)[:length]) for length in (8, 20, 32)),
    ("PNG", png(8, 9).replace(b"IHDR", b"IHDX")),
    ("PNG", png(8, 9)[:20] + b"\xff" + png(8, 9)[21:]),
    ("PNG", png(0, 9)),
    *(("JPEG", jpeg(8, 9)[:length]) for length in (3, 8, 16)),
    ("JPEG", jpeg(8, 9, before=b"\xff\xe0\x00\x05ab")),
    ("JPEG", jpeg(8, 9).replace(b"\xff\xc0\x00\x0b", b"\xff\xc0\x12\x34")),
    ("JPEG", jpeg(8, 0)),
]


@pytest.mark.parametrize(("kind", "content"), BROKEN)
def test_of_a_broken_file_it_says_that_it_is_broken_however_large(kind, content):
    assert kind_of(content) == kind
    for size_bytes in (0, 2 * MOST_FILE_BYTES):
        broken = content.ljust(size_bytes, b"\0")
        assert image_of_file(kind, broken) == f"begins as a {kind}, but can't be read"


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("PNG", png(8, 9, 0)),
        ("JPEG", jpeg(8, 9, 0)),
        ("JPEG", jpeg(8, 9, 0, b"\xff\xe1\0\6\xff\xd8\xff\xd9")),
    ],
)
def test_a_file_without_its_end_is_cut_short(kind, whole):
    assert fault_of(kind, whole) is None
    assert fault_of(kind, whole + b"more") is None
    header = 33 if kind == "PNG" else whole.index(b"\xff\xda")
    for length in range(header, len(whole)):
        assert fault_of(kind, whole[:length]) == "is cut short", length
        assert image_of_file(kind, whole[:length]) == f"begins as a {kind}, but is cut short"


def test_what_is_broken_among_images_is_named_by_its_record():
    whole, indices = jpeg(8, 9), np.arange(10, 30)
    column = [whole] * 20
    assert faults_of(column, indices) is None
    assert faults_of([*column[:-1], whole[:12]], indices[::-1]) == "Broken, 1 of 20: record 10 can't be read"
    column[3], column[7], column[19] = whole[:-90], b"<html>", b""
    assert faults_of(column, indices) == (
        "Broken, 3 of 20: record 13 can't be read, record 17 is no JPEG or PNG, record 29 is no JPEG or PNG"
    )
    for count in (MOST_FAULTS, MOST_FAULTS + 1):
        column = [whole] * (20 - count) + [png(8, 9, 0)[:-1]] * count
        found = faults_of(column, indices)
        assert found.count("is cut short") == MOST_FAULTS
        assert ("1 more" in found) == (count > MOST_FAULTS)


def test_where_few_are_images_nothing_is_broken():
    for images in (0, 1, 2):
        column = [jpeg(8, 9)] * images + [b"text"] * 2
        assert faults_of(column, np.arange(len(column))) is None
    assert faults_of([jpeg(8, 9)] * 3 + [b"text"] * 2, np.arange(5)) is not None
    assert faults_of(["text"], np.arange(1)) is None
    assert faults_of(np.zeros((3, 2)), np.arange(3)) is None


def test_before_a_segment_of_a_jpeg_there_may_be_more_of_its_first_byte():
    content = jpeg(8, 9, before=b"\xff\xff\xff\xe0\x00\x04ab\xff\xff")
    assert image_of_file("JPEG", content) == Image("JPEG", content, 8, 9)


@given(st.binary(max_size=200))
def test_whatever_begins_as_a_jpeg_or_png_is_looked_at_without_harm(rest):
    for start, kind in (
        (b"\xff\xd8\xff", "JPEG"),
        (b"\xff\xd8\xff\xe0\0\0", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PNG"),
    ):
        assert kind_of(start + rest) == kind
        found = image_of_file(kind, start + rest)
        assert kind in found if isinstance(found, str) else found.kind == kind


# Markup


@given(st.text(st.characters(codec=None)))
def test_any_text_stays_text_and_any_attribute_an_attribute(value):
    page = element("p", text(value, 10**6) + lines(value, 10**6), title=value, class_="x")
    assert page.count("<") == 2
    assert page.count('"') == 4
    read_page(f"<!DOCTYPE html>\n<h1>{text(value)}</h1>".encode("ascii", "xmlcharrefreplace"))


@pytest.mark.parametrize("length", [299, 300, 301, 900])
def test_a_text_is_cut_before_it_is_escaped(length):
    shown = text("<" * length)
    assert shown == "&lt;" * min(length, 300) + "..." * (length > 300)


def test_json_values_are_summarized_as_their_texts():
    values = [None, {"a": 1}, None, ["x"], {"a": 1}, None]
    found = summary_of(Leaf("json"), values, 0).distributions
    assert found[0].classes == (("null", 3), ('{"a":1}', 2), ('["x"]', 1))
    assert found[1].title == "characters"
