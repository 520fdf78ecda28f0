"""The tables of requests on the page about far data are what `python -m benchmarks order_costs` computes."""

import importlib.util
from pathlib import Path

import pytest

import yogadl

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "order_costs.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("order_costs", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def url(script, tmp_path_factory):
    return script.cache_in(tmp_path_factory.mktemp("costs"))


def test_the_page_has_these_tables(script, url):
    page = script.PAGE.read_text("utf-8")
    assert script.page_with_tables(page, url) == page, "run python -m benchmarks order_costs --write"


def test_reading_makes_the_requests_of_the_table(script, url):
    for order in (False, script.NARROW):
        loader = yogadl.open_storage(url, mirror=None).fetch("images", "1").stream(shuffle=order).batch(32)
        loader = loader.prefetch(4)
        assert sum(len(batch["image"]) for batch in loader) == script.RECORDS
        assert loader.stats().ranges == pytest.approx(script.cost(url, order, 1, None)[0], abs=8)
