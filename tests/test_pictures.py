"""The pictures of docs/ are what their scripts draw."""

import runpy
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def test_the_picture_of_three_shuffles_is_that_of_their_orders():
    drawn = runpy.run_path(str(PICTURES / "shuffle.py"))["picture"]()
    assert drawn == (PICTURES / "shuffle.svg").read_text("utf-8")
