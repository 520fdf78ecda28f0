"""The pictures of docs/ are what their scripts draw."""

import runpy
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


@pytest.mark.parametrize("name", ["shuffle", "orders"])
def test_a_picture_of_three_orders_is_that_of_their_records(name):
    drawn = runpy.run_path(str(PICTURES / "shuffle.py"))["picture"](name)
    assert drawn == (PICTURES / f"{name}.svg").read_text("utf-8")


def test_the_picture_of_a_resume_is_that_of_a_real_one():
    drawn = runpy.run_path(str(PICTURES / "resume.py"))["drawn"]()
    assert drawn == (PICTURES / "resume.svg").read_text("utf-8")
