"""The site of docs/ in a real browser: each page fits its window, a phone or a desk, in light and in dark."""

import sys
from pathlib import Path

import pytest

SITE = Path(sys.prefix) / "html"  # where sphinx-build was told to put it
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
WIDTHS = (390, 1280)
# What is cut, or wider than the window, and what may scroll by itself: code, and a wide table.
WIDER = """[...document.querySelectorAll("article *")].filter(
    one => !one.closest("pre, .table-wrapper, .yogadl .wide")
        && one.getBoundingClientRect().right > innerWidth + 1
).map(one => one.outerHTML.slice(0, 200))"""
OUT_OF_ITS_BOX = """[...document.querySelectorAll("article pre, article .table-wrapper")].filter(
    one => one.scrollWidth > one.clientWidth + 1 && !/auto|scroll/.test(getComputedStyle(one).overflowX)
).map(one => one.outerHTML.slice(0, 200))"""
HIDDEN = """[...document.querySelectorAll("article pre, article .table-wrapper")].filter(
    one => one.scrollWidth > one.clientWidth + 1
).map(one => one.innerText.slice(0, 200))"""
# Numbers that a line break cuts: the cells of tables whose texts take more lines than they have words.
CUT = r"""[...document.querySelectorAll("article td")].filter(cell => {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[\d.]+\u00a0\w+/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(one => one.top)).size > 1) return true;
    }
    return false;
}).map(cell => cell.innerText)"""
# Texts that are hard to read on what lies behind them: of less contrast than 4.5, or 3 if they are large.
FAINT = r"""(() => {
    const numbers = color => color.match(/[\d.]+/g).map(Number);
    const light = color => numbers(color).slice(0, 3).map(each => each / 255).map(
        each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4
    ).reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
    const behind = one => {
        for (; one; one = one.parentElement) {
            const color = getComputedStyle(one).backgroundColor;
            if ((numbers(color)[3] ?? 1) > 0.5) return color;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const one = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
        if (!text || one.closest("script, style, svg, noscript, .headerlink")) continue;
        if (!one.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const style = getComputedStyle(one), size = parseFloat(style.fontSize);
        const [dark, bright] = [light(style.color), light(behind(one))].sort((a, b) => a - b);
        const isLarge = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
        const contrast = (bright + 0.05) / (dark + 0.05);
        if (contrast < (isLarge ? 3 : 4.5)) found.push([one.className, text, contrast]);
    }
    return found.slice(0, 5);
})()"""
# Texts that lie over each other, or out of the picture, as far as they are seen.
COLLIDING = r"""(() => {
    const seen = [], texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const one = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
        if (!text || one.closest("script, style, noscript, title, .headerlink")) continue;
        if (!one.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const range = document.createRange();
        range.selectNodeContents(texts.currentNode);
        for (const {left, right, top, bottom} of range.getClientRects()) {
            const box = {left, right, top, bottom, text};
            for (let clip = one; clip instanceof HTMLElement; clip = clip.parentElement) {
                if (getComputedStyle(clip).overflow === "visible") continue;
                const inside = clip.getBoundingClientRect();
                box.left = Math.max(box.left, inside.left), box.right = Math.min(box.right, inside.right);
                box.top = Math.max(box.top, inside.top), box.bottom = Math.min(box.bottom, inside.bottom);
            }
            if (box.right > box.left + 1 && box.bottom > box.top + 1 && box.right > 0) seen.push(box);
        }
    }
    seen.sort((a, b) => a.top - b.top);
    const found = [];
    for (const [place, one] of seen.entries()) {
        if (document.documentElement instanceof SVGElement && (
            one.left < -1 || one.top < -1 || one.right > innerWidth + 1 || one.bottom > innerHeight + 1
        )) found.push(["outside", one.text]);
        for (const other of seen.slice(place + 1)) {
            if (other.top >= one.bottom) break;
            const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
            const high = Math.min(one.bottom, other.bottom) - other.top;
            const least = Math.min(one.bottom - one.top, other.bottom - other.top);
            if (wide > 2 && high > 0.4 * least) found.push([one.text, other.text]);
        }
    }
    return found.slice(0, 5);
})()"""
TWICE = """(() => {
    const title = document.querySelector("h1"), {left, top} = title.getBoundingClientRect();
    const copy = title.cloneNode(true);
    copy.style.cssText = `position: absolute; margin: 0; left: ${left}px; top: ${top}px`;
    document.body.append(copy);
})()"""
FILE_NAMES = r"""[...document.querySelectorAll("article a.internal")].map(one => one.innerText).filter(
    text => /^\S+\.(md|rst)$/.test(text)
)"""


def test_the_site_has_each_kind_of_page():
    assert {"index.html", "comparison.html", "howto/pytorch.html", "reference/storage.html"} <= set(PAGES)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_window(browser, width, dark):
    for page in PAGES:
        browser.open(SITE / page, width=width, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") <= width, page
        for script in (WIDER, OUT_OF_ITS_BOX, CUT):
            assert browser.run(script) == [], page
        assert browser.complaints() == [], page


# One page of each kind.
KINDS = (
    "index.html", "tutorial.html", "comparison.html", "decisions.html", "troubles.html", "cli.html",
    "howto/pytorch.html", "stories/robots.html", "tasks/data.html", "explanation/order.html",
    "reference/streams.html",
)  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", KINDS)
def test_texts_stand_out_from_what_is_behind_them(browser, page, dark):
    browser.open(SITE / page, dark=dark)
    assert browser.run(FAINT) == []
    browser.run("document.querySelector('h1').style.color = getComputedStyle(document.body).backgroundColor")
    assert browser.run(FAINT) != []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", KINDS)
def test_no_text_lies_over_another(browser, page, width):
    browser.open(SITE / page, width=width)
    assert browser.run(COLLIDING) == []
    browser.run(TWICE)
    assert browser.run(COLLIDING) != []


PICTURES = sorted((Path(__file__).parents[2] / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_no_text_of_a_picture_lies_over_another_or_outside(browser, picture):
    browser.open(picture, width=1280)
    assert browser.run(COLLIDING) == []
    browser.run("document.querySelectorAll('text').forEach(one => one.setAttribute('x', -30))")
    assert browser.run(COLLIDING) != []


def test_links_show_titles(browser):
    for page in PAGES:
        browser.open(SITE / page)
        assert browser.run(FILE_NAMES) == [], page


@pytest.mark.parametrize("page", ["index.html", "comparison.html"])
def test_on_a_desk_all_columns_and_all_code_are_seen_at_once(browser, page):
    browser.open(SITE / page, width=1280)
    assert browser.run(HIDDEN) == []


SEEN_IN_THE_SIDE_BAR = """[...document.querySelectorAll(".sidebar-tree a")].filter(
    one => one.getClientRects().length
).map(one => one.innerText)"""


def test_the_side_bar_shows_few_entries_and_the_pages_of_the_group_in_which_one_is(browser):
    browser.open(SITE / "index.html", width=1280)
    first = browser.run(SEEN_IN_THE_SIDE_BAR)
    assert len(first) <= 30
    assert first[0].startswith("Tutorial")
    every = browser.run('[...document.querySelectorAll(".sidebar-tree a")].map(one => one.href)')
    pages = {*PAGES} - {"index.html", "genindex.html", "py-modindex.html", "search.html"}
    assert {(SITE / page).as_uri() for page in pages} == set(every)
    browser.open(SITE / "howto" / "grain.html", width=1280)
    inside = browser.run(SEEN_IN_THE_SIDE_BAR)
    assert set(first) < set(inside)
    assert {"Grain: its loaders over a cache", "JAX, on one host or many"} <= set(inside)


def test_a_button_copies_code_without_prompts_and_answers(browser):
    copies = """(async () => {
        const copied = [];
        Object.defineProperty(navigator, "clipboard", {value: {writeText: async text => copied.push(text)}});
        for (const button of document.querySelectorAll("button.copy")) button.click();
        await null;
        return [copied, [...document.querySelectorAll("button.copy")].map(one => one.innerText)];
    })()"""
    browser.open(SITE / "index.html")
    (code,), names = browser.run(copies)
    assert code.startswith("import numpy as np\nimport yogadl\n\nstorage = ")
    assert names == ["Copied"]
    browser.open(SITE / "cli.html")
    commands = [text for text in browser.run(copies)[0] if text.startswith("yogadl ")]
    assert commands
    assert not any("$" in text for text in commands)


def test_on_a_phone_the_tables_of_the_comparison_need_no_scrolling_and_lack_nothing(browser):
    cells = """[...document.querySelectorAll("article table")].filter(
        table => table.getClientRects().length
    ).flatMap(table => [...table.rows]).flatMap(
        row => [...row.cells].slice(1).map(cell => [row.cells[0], cell])
    ).map(pair => pair.map(cell => cell.innerText.trim()).join(": ")).sort()"""
    browser.open(SITE / "comparison.html", width=1280)
    wide, count = browser.run(cells), "document.querySelectorAll('article table.wide').length"
    assert browser.run(count) > 2
    browser.open(SITE / "comparison.html", width=390)
    assert browser.run(cells) == wide
    assert browser.run(HIDDEN) == []


def test_texts_of_pictures_do_not_run_into_each_other(browser):
    for picture in ("compare", "layers", "orders", "shuffle"):
        browser.open(SITE / "_images" / f"{picture}.svg", width=1280)
        meeting = """(() => {
            const texts = [...document.querySelectorAll("text")].map(one => [one.textContent,
                one.getBoundingClientRect()]), whole = document.documentElement.getBoundingClientRect();
            const found = texts.filter(([, a]) => a.right > whole.right + 1).map(([text]) => text);
            texts.forEach(([text, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
                if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 6
                    && b.top < a.bottom - 6) found.push([text, other]);
            }));
            return found;
        })()"""
        assert browser.run(meeting) == [], picture
