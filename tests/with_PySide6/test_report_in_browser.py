"""The page of `yogadl report` in a real browser: what it loads, and how it looks."""

import re

import numpy as np
import pytest
import strange_sets

import yogadl
from yogadl.cli import main

WIDTHS = (360, 768, 1280)
OVERFLOW = """[...document.querySelectorAll("body *")].filter(
    one => !one.closest(".wide, pre, .text") && one.getBoundingClientRect().right > innerWidth + 1
).map(one => one.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write a page on each of the strange datasets, and an ordinary one; return them by their names."""
    folder = tmp_path_factory.mktemp("pages")
    storage = yogadl.open_storage(folder / "caches")
    sets = strange_sets.unusual() | {
        "ordinary": ordinary(),
        "hostile": list(strange_sets.hostile()),
        "small floats": strange_sets.small_floats(),
        "labels": labels(),
        "long": [{"x" * 3000: "y" * 3000, "words " * 90: b"z" * 3000, "int": 2**63 - 1}] * 30,
    }
    for number, (name, source) in enumerate(sets.items()):
        storage.submit(source, f"set-{number}", "1")
        words = ["report", f"set-{number}", "1", "-o", folder / f"{name}.html", "-s", storage.location]
        assert main(list(map(str, words))) == 0
    return {name: folder / f"{name}.html" for name in sets}


def ordinary():
    random = np.random.default_rng(0)
    return [
        {
            "image": random.integers(0, 256, (32, 24, 3), np.uint8),
            "grey": random.integers(0, 256, (300, 400), np.uint8),
            "label": int(random.integers(10)),
            "weight": random.normal(size=4),
            "caption": "a caption " * (n % 9),
            "tokens": np.arange(n),
        }
        for n in range(200)
    ]


def labels():
    """Return few values whose labels are long, and many whose least and greatest are."""
    random = np.random.default_rng(0)
    return [
        {
            "word": ("W" * 40, "automobile", "a_word_of_thirty_four_letters_____")[n % 3],
            "bytes": b"\0" * (40 - n % 3),
            "int": int(random.integers(-(2**63), 2**63 - 1)),
            "time": np.datetime64(int(random.integers(2**60)), "ns"),
        }
        for n in range(99)
    ]


def luminance(colour):
    parts = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_it_loads_nothing_and_shows_all(browser, pages):
    browser.open(pages["ordinary"])
    own, *others = browser.requests()
    assert own == pages["ordinary"].as_uri()
    assert all(one.startswith("data:image/png;base64,") for one in others)
    assert browser.complaints() == []
    assert browser.run("document.title") == "set-{} 1 - yogadl".format(list(pages).index("ordinary"))
    assert browser.run("[...document.querySelectorAll('h2')].map(one => one.innerText)") == [
        "Fields", "Records", "Shuffle", "On disk", "Where it came from", "Versions and tags"
    ]  # fmt: skip
    images = browser.run("[...document.images].map(one => [one.naturalWidth, one.naturalHeight, one.width])")
    assert images == [[24, 32, 72], [200, 150, 200]] * 6
    assert browser.run("document.scripts.length") == 0
    bars = browser.run("[...document.querySelectorAll('.histogram rect')].map(one => one.getBBox().height)")
    assert len(bars) > 60
    assert min(bars) >= 1
    assert max(bars) == 80


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_any_width_and_can_be_read(browser, pages, width, dark):
    browser.open(pages["ordinary"], width=width, dark=dark)
    assert browser.run("innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(OVERFLOW) == []
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.1) == dark
    assert f"rgb{browser.colour(1, 1)}" == paper
    for kind in ("h1", "h4", ".note", "a", "td", ".facts dt", "summary, footer p"):
        colour = browser.run(f"getComputedStyle(document.querySelector('{kind}')).color")
        lighter, darker = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, kind


@pytest.mark.parametrize("width", [360, 400, 1280])
def test_labels_of_bars_are_wrapped_and_the_bars_stay(browser, pages, width):
    browser.open(pages["labels"], width=width)
    hidden = "one => one.scrollWidth > one.clientWidth"
    assert browser.run(f"[...document.querySelectorAll('.card .wide')].filter({hidden}).length") == 0
    widths = "[...document.querySelectorAll('.card .share')].map(one => one.getBoundingClientRect().width)"
    assert min(browser.run(widths)) >= 64
    lines = """(() => {
        const range = document.createRange(), cells = document.querySelectorAll(".card th[scope=row]");
        range.selectNodeContents([...cells].find(one => one.innerText == "automobile"));
        return range.getClientRects().length;
    })()"""
    assert browser.run(lines) == 1


def test_on_paper_it_is_black_on_white(browser, pages):
    browser.open(pages["ordinary"], dark=True, media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_pictures_have_names_for_those_who_do_not_see_them(browser, pages):
    browser.open(pages["ordinary"])
    images, drawings = browser.named("image"), browser.named("SvgRoot") + browser.named("graphics-document")
    found = images + drawings
    assert "The order of the first epoch with seed 0" in found
    assert sum("of record" in name for name in found) == 12
    assert all(found)
    assert browser.named("region").count("The fields of a record") == 1


def test_numbers_are_aligned_to_the_right(browser, pages):
    browser.open(pages["ordinary"])
    ends = browser.run("""[...document.querySelectorAll("#storing ~ .wide tr")].map(row => {
        const range = document.createRange(); range.selectNodeContents(row.cells[2]);
        return range.getBoundingClientRect().right;
    })""")
    assert len(ends) == 7
    assert max(ends) - min(ends) < 1


def test_what_a_dataset_says_runs_nothing(browser, pages):
    browser.open(pages["hostile"], width=360)
    assert browser.complaints() == []
    assert browser.requests() == [pages["hostile"].as_uri()]
    assert browser.run("document.scripts.length") == 0
    assert browser.run("document.images.length") == 0
    names = browser.run("[...document.querySelectorAll('#fields ~ .cards h3')].map(one => one.textContent)")
    assert names[0] == strange_sets.MARKUP


def test_if_anything_passed_for_markup_nothing_would_run_or_be_loaded(browser, pages):
    browser.open(pages["ordinary"])
    refused = browser.run("""new Promise(done => {
        const found = [];
        document.addEventListener("securitypolicyviolation", one => {
            if (found.push(one.effectiveDirective) == 3) done(found);
        });
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src='file:///x.png'><p style='color: red'>");
    })""")
    assert sorted(refused) == ["img-src", "script-src-elem", "style-src-attr"]
    assert browser.run("window.ran === undefined")
    assert browser.run("document.images[document.images.length - 1].naturalWidth") == 0


@pytest.mark.parametrize("name", [*strange_sets.unusual(), "hostile", "labels", "small floats", "long"])
def test_a_page_on_anything_fits_a_phone(browser, pages, name):
    browser.open(pages[name], width=360)
    assert browser.complaints() == []
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run(OVERFLOW) == []
