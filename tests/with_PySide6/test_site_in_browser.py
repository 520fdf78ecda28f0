"""The site of docs/ in a real browser: each page fits its window, a phone or a desk, in light and in dark."""

import sys
from pathlib import Path

import pytest

SITE = Path(sys.prefix) / "html"  # where sphinx-build was told to put it
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
WIDTHS = (390, 1280)
# What is cut, or wider than the window, and what may scroll by itself: code, and a wide table.
WIDER = """[...document.querySelectorAll("article *")].filter(
    one => !one.closest("pre, .table-wrapper") && one.getBoundingClientRect().right > innerWidth + 1
).map(one => one.outerHTML.slice(0, 200))"""
OUT_OF_ITS_BOX = """[...document.querySelectorAll("article pre, article .table-wrapper")].filter(
    one => one.scrollWidth > one.clientWidth + 1 && !/auto|scroll/.test(getComputedStyle(one).overflowX)
).map(one => one.outerHTML.slice(0, 200))"""
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


def test_links_show_titles(browser):
    for page in PAGES:
        browser.open(SITE / page)
        assert browser.run(FILE_NAMES) == [], page


@pytest.mark.parametrize("page", ["index.html", "comparison.html"])
def test_on_a_desk_all_columns_and_all_code_are_seen_at_once(browser, page):
    browser.open(SITE / page, width=1280)
    hidden = """[...document.querySelectorAll("article pre, article .table-wrapper")].filter(
        one => one.scrollWidth > one.clientWidth + 1
    ).map(one => one.innerText.slice(0, 200))"""
    assert browser.run(hidden) == []


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
