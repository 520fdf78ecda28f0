"""What a notebook shows of references, streams and loaders: their fields and first records, as HTML."""

import html.parser
import subprocess
import sys

import numpy as np
import pytest
from indexed import Items
from inside import MOST_SIDE, set_constants

import yogadl

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&</td></style>"


class Shown(html.parser.HTMLParser):
    """The tags and the visible text of HTML."""

    def __init__(self, shown):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(shown._repr_html_())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.texts.append(data)


def rows(count=9):
    return [
        {"image": np.full((4, 5, 3), number % 256, np.uint8), "text": f"word {number}", "label": number}
        for number in range(count)
    ]


def test_a_reference_shows_its_fields_and_first_records():
    shown = Shown(yogadl.from_source(rows()))
    assert [tag for tag in shown.tags if tag == "img"] == ["img"] * 3
    for text in ("image", "uint8", "4 x 5 x 3", "record 2", "word 0", "word 2", "label"):
        assert text in shown.texts
    assert "record 3" not in shown.texts
    assert any(text.startswith("<RecordsRef of 9 records") for text in shown.texts)


def test_a_stream_and_a_loader_show_the_records_that_they_begin_with():
    ref = yogadl.from_source(rows())
    stream = ref.stream(shuffle=True, shuffle_seed=5).map(lambda record: {"twice": 2 * record["label"]})
    first = stream.indices(stop=3).tolist()
    for shown in (Shown(stream), Shown(stream.batch(4))):
        assert [f"record {index}" for index in first] == [t for t in shown.texts if t.startswith("record ")]
        assert {str(2 * index) for index in first} <= set(shown.texts)
        assert "twice" in shown.texts
    mix = yogadl.mix({"one": (ref, 0.5), "other": (ref, 0.5)})
    assert "word 0" in Shown(mix).texts


def test_showing_reads_few_records_and_moves_nothing():
    source = Items(rows(1000))
    ref = yogadl.from_source(source, "f")
    loader = ref.stream(shuffle=True).batch(10)
    list(zip(range(2), loader, strict=False))
    state, stats = loader.state_dict(), loader.stats().batches
    source.read.clear()
    for shown in (ref, loader.stream, loader):
        shown._repr_html_()
    assert len(source.read) <= 9
    assert (loader.state_dict(), loader.stats().batches) == (state, stats)
    assert [int(label) for label in next(iter(ref.stream().batch(2)))["label"]] == [0, 1]


def test_of_large_records_none_is_read():
    large = yogadl.from_source({"x": np.zeros((2, 2**22, 9), np.uint8)})
    shown = Shown(large)
    assert "4194304 x 9" in shown.texts
    assert not [text for text in shown.texts if text.startswith("record ")]


def test_names_and_values_are_text():
    shown = Shown(yogadl.from_source([{MARKUP: MARKUP, "bytes": MARKUP.encode(), "": "\u202e\0"}]))
    assert not {"script", "img"} & set(shown.tags)
    assert not [name for found in shown.attributes for name in found if name.startswith("on")]
    assert "".join(shown.texts).count("<script>alert(1)</script>") == 3
    assert "\\u202e\\x00" in shown.texts


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_three_records_are_shown_and_fewer_where_there_are_fewer(tmp_path, count):
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"x": np.arange(5)}, "d", "1")
    ref = storage.fetch("d", "1")[:count]
    for shown in (ref, ref.stream(shuffle=True).batch(3)):
        assert sum(text.startswith("record ") for text in Shown(shown).texts) == min(count, 3)


@pytest.mark.parametrize(("size_bytes", "count"), [(99, 0), (100, 1), (199, 1), (200, 2), (300, 3), (400, 3)])
def test_fewer_records_are_shown_if_they_are_large(monkeypatch, size_bytes, count):
    set_constants(monkeypatch, SHOWN_BYTES=size_bytes)
    shown = Shown(yogadl.from_source({"x": np.zeros((9, 100), np.uint8)}))
    assert sum(text.startswith("record ") for text in shown.texts) == count


def test_pickled_values_are_not_opened(tmp_path):
    storage = yogadl.open_storage(tmp_path)
    storage.submit([{"any": {1, 2}, "x": 5}], "d", "1", records=yogadl.RecordOptions(allow_pickle=True))
    assert {"pickled", "5"} <= set(Shown(storage.fetch("d", "1", allow_pickle=True)).texts)


def test_what_continues_from_a_cursor_shows_the_records_that_come_next():
    stream = yogadl.from_source(rows()).stream()
    for shown in (stream, stream.batch(2), stream.batch(2).map(len)):
        shown.load_state_dict(stream.cursor(4))
        words = [text for text in Shown(shown).texts if text.startswith("word ")]
        assert words == ["word 4", "word 5", "word 6"]


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)])
def test_what_cannot_be_read_shows_its_repr(error):
    def fail(record):
        raise error

    ref = yogadl.from_source(rows())
    for shown in (ref.map(fail, spec=ref.spec), ref.stream().map(fail, spec=ref.spec)):
        assert shown._repr_html_() is None
        assert repr(shown)


def test_many_fields_and_large_images_are_bounded():
    for count, more in ((29, 0), (30, 0), (31, 1), (50, 20)):
        shown = Shown(yogadl.from_source([{f"field {number}": number for number in range(count)}]))
        assert any("more fields" in text for text in shown.texts) == (more > 0)
        assert (f"{more} more fields" in shown.texts) == (more > 0)
    noise = np.random.default_rng(0).integers(0, 255, (3, 500, 500, 3), np.uint8)
    content = yogadl.from_source({f"image {n}": noise for n in range(12)})._repr_html_()
    assert len(content) < 12 * 3 * MOST_SIDE**2 * 3 * 4 / 3


def test_importing_yogadl_does_not_load_it():
    code = "import sys, yogadl; assert not {'yogadl._core.shown', 'html'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_json_values_are_shown_as_their_text():
    shown = Shown(yogadl.from_source([{"tree": {"a": MARKUP}}, {"tree": None}, {"tree": [1, 2.5]}]))
    assert not {"script", "img"} & set(shown.tags)
    assert {"json", "null", "[1,2.5]"} <= set(shown.texts)
