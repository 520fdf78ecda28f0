"""Which worker reads which items: arithmetic alone."""

import itertools
import sys

from hypothesis import given
from hypothesis import strategies as st
from inside import Assignment

ALL = {"workers": st.integers(1, 5), "deal": st.integers(1, 7), "items": st.integers(0, 90)}


def elements_of(assignment, worker):
    """Return the elements that a worker makes of the items it reads, as Grain shares them out."""
    places = range(worker, assignment.length, assignment.workers)
    items = [item for item in map(assignment.item, places) if item < assignment.items]
    return [items[first : first + assignment.deal] for first in range(0, len(items), assignment.deal)]


def in_turn(assignment):
    """Return (worker, element) as Grain takes them from the workers, one each in turn."""
    rows = itertools.zip_longest(*(elements_of(assignment, worker) for worker in range(assignment.workers)))
    return [(worker, element) for row in rows for worker, element in enumerate(row) if element is not None]


@given(**ALL)
def test_what_the_workers_deliver_in_turn_is_in_order(workers, deal, items):
    assignment = Assignment(workers, deal, items)
    elements = [element for _, element in in_turn(assignment)]
    assert elements == [list(range(first, min(items, first + deal))) for first in range(0, items, deal)]


@given(**ALL)
def test_places_behind_the_end_come_last_for_each_worker(workers, deal, items):
    assignment = Assignment(workers, deal, items)
    for worker in range(workers):
        found = [assignment.item(place) < items for place in range(worker, assignment.length, workers)]
        assert found == sorted(found, reverse=True)


@given(**ALL)
def test_what_was_taken_says_what_was_delivered(workers, deal, items):
    assignment = Assignment(workers, deal, items)
    taken, delivered = [0] * workers, 0
    assert assignment.delivered(taken) == 0
    for worker, element in in_turn(assignment):
        taken[worker] += len(element)
        delivered += len(element)
        assert assignment.delivered(taken) == delivered


@given(workers=st.integers(2, 5), deal=st.integers(1, 7), full=st.integers(0, 3))
def test_what_is_no_prefix_is_refused(workers, deal, full):
    assignment = Assignment(workers, deal, 1000)
    taken = [full * deal] * workers
    taken[-1] += deal  # the last before the first
    assert assignment.delivered(taken) is None


@given(workers=st.integers(1, 5), deal=st.integers(2, 7))
def test_half_an_element_is_refused(workers, deal):
    assert Assignment(workers, deal, 1000).delivered([deal - 1] + [0] * (workers - 1)) is None


def test_an_endless_order_is_dealt_without_end():
    assignment = Assignment(2, 3, sys.maxsize)
    assert assignment.length == sys.maxsize
    assert [assignment.item(place) for place in range(8)] == [0, 3, 1, 4, 2, 5, 6, 9]
