"""What a notebook shows of a reference, in a real browser: it fits the column of a notebook."""

import numpy as np
import pytest

import yogadl

WIDTH = 900


def wide():
    random = np.random.default_rng(0)
    return [
        {
            "image": random.integers(0, 256, (300, 400, 3), np.uint8),
            "small": random.integers(0, 256, (8, 8), np.uint8),
            "a/rather/long/path/of/names/in/a/tree/of/records": "words of a caption " * 40,
            "token": "x" * 900,
            "json": {"role": "user", "content": [{"type": "text", "text": "y" * 200}] * 3},
            "numbers": random.normal(size=8),
            "bytes": b"z" * 300,
        }
        for _ in range(3)
    ]


@pytest.mark.parametrize("kind", ["reference", "stream", "loader"])
def test_what_a_notebook_shows_fits_its_column(browser, tmp_path, kind):
    ref = yogadl.from_source(wide(), "name")
    stream = ref.stream(shuffle=True)
    shown = {"reference": ref, "stream": stream, "loader": stream.batch(2)}[kind]._repr_html_()
    page = tmp_path / "cell.html"
    page.write_text(f"<!DOCTYPE html><meta charset=utf-8><body style='margin: 0'>{shown}")
    browser.open(page, width=WIDTH)
    assert browser.run("document.documentElement.scrollWidth") <= WIDTH
    assert browser.run("document.querySelector('.yogadl table').getBoundingClientRect().right") <= WIDTH
    assert browser.run("document.querySelectorAll('.yogadl img').length") == 6
