"""Ranges of a bucket's objects: merged, read ahead, kept, bounded; the right bytes or one clear error."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from inside import (
    GAP_BYTES,
    MOST_RANGE_BYTES,
    PAGE_BYTES,
    AnnouncedRanges,
    FetchedRange,
    Files,
    ForeignFiles,
    Object,
    PartObjects,
    Ranges,
    ReplacedError,
    RequestCount,
    Spending,
    merged,
    replaced,
    set_constants,
)
from processes import in_fork, wait_until

import yogadl
from yogadl.errors import CacheFormatError, SpendingError, StorageError

SIZES = np.array([3 * PAGE_BYTES + 17, 5, PAGE_BYTES, 2 * PAGE_BYTES - 1])


class Store:
    """A bucket of parts of random bytes, which notes what is asked of it."""

    def __init__(self, sizes=SIZES):
        random = np.random.default_rng(1)
        self.sizes = np.asarray(sizes)
        self.parts = [random.bytes(size) for size in self.sizes.tolist()]
        self.asked = []
        self.tag = "one"
        self.fails = lambda part, start, stop: None
        self.gate = threading.Event()
        self.gate.set()
        self.url = "memory://store"

    def __repr__(self):
        return self.url

    def fetch_range(self, name, start, stop, *, tag=None):
        part = int(name.removeprefix("d/parts/").removesuffix(".mdb"), 16)
        self.asked.append((part, start, stop))
        self.gate.wait(60)
        found = self.fails(part, start, stop)
        if isinstance(found, Exception):
            raise found
        if found is not None:
            return found or None
        if tag not in (None, self.tag):
            raise replaced(self.url, name)
        content = self.parts[part][start:stop]
        return FetchedRange(memoryview(content), Object(name, len(self.parts[part]), self.tag, 0.0))

    def ranges(self, spending=None):
        count = RequestCount(spending or Spending())
        files = Files([f"{part:064x}" for part in range(len(self.sizes))], self.sizes, ForeignFiles.of(()))
        return Ranges(PartObjects(self, "d", files, count).fetch, self.sizes, count)


def arrays(spans):
    parts, starts, lengths = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return parts, starts, lengths


def announce(ranges, spans, *, keeps_pages=False):
    """Announce spans; return the handle that keeps their bytes."""
    held = AnnouncedRanges(ranges)
    ranges.announce(*arrays(spans), held, keeps_pages=keeps_pages)
    return held


def check(ranges, store, spans, *, keeps_pages=False):
    """Read spans of (part, start, length), and compare each with the part's own bytes."""
    found = ranges.read(*arrays(spans), keeps_pages=keeps_pages)
    for content, (part, start, length) in zip(found, spans, strict=True):
        assert bytes(content) == store.parts[part][start : start + length]


def anywhere(store, count, seed=0, most=3000):
    random = np.random.default_rng(seed)
    spans = []
    for part in random.integers(0, len(store.sizes), count).tolist():
        start = int(random.integers(0, store.sizes[part]))
        spans.append((part, start, int(random.integers(0, min(most, store.sizes[part] - start) + 1))))
    return spans


@pytest.mark.parametrize("keeps_pages", [False, True])
@pytest.mark.parametrize("expects", ["nothing", "all", "half", "twice", "others"])
def test_any_ranges_are_right_whatever_was_expected(expects, keeps_pages):
    store = Store()
    ranges, spans = store.ranges(), anywhere(store, 300)
    expected = {"nothing": [], "all": spans, "half": spans[::2], "twice": spans + spans}
    for some in np.array_split(np.arange(300), 7):
        chosen = [spans[number] for number in some.tolist()]
        told = (
            anywhere(store, 40, 9) if expects == "others" else [s for s in expected[expects] if s in chosen]
        )
        held = announce(ranges, told, keeps_pages=keeps_pages) if told else None
        check(ranges, store, chosen, keeps_pages=keeps_pages)
        del held
    check(ranges, store, spans, keeps_pages=not keeps_pages)
    assert ranges.received[0] == len(store.asked)
    assert ranges.received[1] == sum(stop - start for _, start, stop in store.asked)


def test_what_was_announced_is_asked_for_once_as_long_as_its_handle_lives():
    store = Store()
    ranges, spans = store.ranges(), [(0, 10, 100), (0, 5000, 70), (2, 10, 1), (0, 10, 100)]
    first, second = announce(ranges, spans), announce(ranges, spans[:1])
    check(ranges, store, spans)
    check(ranges, store, spans)
    asked = [(0, 10, 110), (0, 5000, 5070), (2, 10, 11)]
    assert sorted(store.asked) == asked
    del first
    wait_until(lambda: len(ranges._known().rows) == 1, "what nobody keeps is gone")
    check(ranges, store, spans[:1])
    assert sorted(store.asked) == asked
    check(ranges, store, spans)
    assert len(store.asked) == 5
    del second
    wait_until(lambda: not ranges._known().rows, "nothing is kept")
    check(ranges, store, spans)
    assert len(store.asked) == 8


def test_what_is_read_to_announce_what_it_points_to_is_kept_by_the_handle():
    store = Store()
    ranges, spans = store.ranges(), [(0, 10, 100), (0, 5000, 70), (1, 0, 0), (2, 10, 1)]
    held = announce(ranges, spans[:1])
    for _ in range(2):
        found = ranges.read(*arrays(spans), keeps_pages=False, held=held)
        assert [bytes(one) for one in found] == [store.parts[p][at : at + n] for p, at, n in spans]
    check(ranges, store, spans)
    assert sorted(store.asked) == [(0, 10, 110), (0, 5000, 5070), (2, 10, 11)]
    assert held.size_bytes == 171


@pytest.mark.parametrize("over", [0, 1])
def test_handles_keep_no_more_than_so_much_the_oldest_is_dropped_first(monkeypatch, over):
    set_constants(monkeypatch, MOST_HELD_BYTES=3000)
    store = Store()
    ranges = store.ranges()
    spans = [(0, 10_000 * number, 1000) for number in range(4)]
    first, second = announce(ranges, spans[:2]), announce(ranges, [(0, 20_000, 1000 + over)])
    check(ranges, store, [spans[1]])
    wait_until(lambda: len(store.asked) == 3, "the request of the third range")
    check(ranges, store, [spans[0]])
    assert len(store.asked) == 3 + over
    assert first.size_bytes + second.size_bytes == 3000 - 999 * over


def test_a_handle_that_has_all_the_room_keeps_its_last_ranges(monkeypatch):
    set_constants(monkeypatch, MOST_HELD_BYTES=3000)
    store = Store()
    ranges = store.ranges()
    spans = [(0, 10_000 * number, 1000) for number in range(9)]
    held = AnnouncedRanges(ranges)
    found = ranges.read(*arrays(spans), keeps_pages=False, held=held)
    assert [bytes(one) for one in found] == [store.parts[0][at : at + 1000] for _, at, _ in spans]
    assert held.size_bytes == 3000
    asked = len(store.asked)
    check(ranges, store, spans[-3:])
    assert len(store.asked) == asked


def test_a_look_that_fails_is_the_read_s_error_and_the_next_try_asks_again():
    store = Store()
    ranges = store.ranges()
    held = AnnouncedRanges(ranges)
    store.fails = lambda part, start, stop: StorageError(5, "the store is ill")
    with pytest.raises(StorageError, match="the store is ill"):
        ranges.read(*arrays([(0, 0, 9)]), keeps_pages=False, held=held)
    store.fails = lambda part, start, stop: None
    for _ in range(2):
        ranges.read(*arrays([(0, 0, 9)]), keeps_pages=False, held=held)
    check(ranges, store, [(0, 0, 9)])
    assert len(store.asked) == 2


def test_what_is_kept_is_asked_for_by_page_and_once():
    store = Store()
    ranges = store.ranges()
    edges = [(0, start, 8) for start in range(PAGE_BYTES - 9, PAGE_BYTES + 2)]
    check(ranges, store, edges, keeps_pages=True)
    assert store.asked == [(0, 0, 2 * PAGE_BYTES)]
    check(ranges, store, [*edges, (0, 100, 1000), (0, 2 * PAGE_BYTES - 1, 1)], keeps_pages=True)
    assert len(store.asked) == 1
    check(
        ranges, store, [(0, 2 * PAGE_BYTES - 1, 2), (3, 2 * PAGE_BYTES - 2, 1), (1, 0, 5)], keeps_pages=True
    )
    assert sorted(store.asked[1:]) == [
        (0, 2 * PAGE_BYTES, 3 * PAGE_BYTES),
        (1, 0, 5),
        (3, PAGE_BYTES, 2 * PAGE_BYTES - 1),
    ]


@pytest.mark.parametrize("gap", [-5, 0, GAP_BYTES, GAP_BYTES + 1])
def test_neighbours_are_asked_for_together(gap):
    spans = [(0, 1000 + 100 + gap, 2000 + gap), (1, 1100, 1200), (0, 1000, 1100)]
    found = merged(spans)
    if gap > GAP_BYTES:
        assert found == [(spans[0], [0]), (spans[1], [1]), (spans[2], [2])]
    else:
        assert found == [((0, 1000, 2000 + gap), [2, 0]), (spans[1], [1])]


@pytest.mark.parametrize("over", [0, 1])
def test_no_more_than_so_much_is_asked_for_together_but_one_value_is_never_cut(over):
    half = MOST_RANGE_BYTES // 2
    spans = [(0, 0, half), (0, half, 2 * half + over)]
    assert len(merged(spans)) == 1 + over
    assert len(merged([(0, 0, 5 * half), (0, 7, 9)])) == 1
    store = Store([3 * half])
    check(store.ranges(), store, [(0, 1, half), (0, 1 + half, half + over), (0, 0, 3 * half)])


def test_a_value_that_is_larger_than_all_that_may_be_held_is_read_once(monkeypatch):
    set_constants(monkeypatch, MOST_HELD_BYTES=3000)
    store = Store()
    ranges = store.ranges()
    held = announce(ranges, [(0, 0, 5000)])
    check(ranges, store, [(0, 0, 5000)])
    assert len(store.asked) == len(held.extents) == 1


@pytest.mark.parametrize("keeps_pages", [False, True])
@pytest.mark.parametrize("expects", [False, True])
def test_an_error_is_raised_where_it_is_read_and_the_next_try_asks_again(expects, keeps_pages):
    store = Store()
    ranges = store.ranges()
    store.fails = lambda part, start, stop: StorageError(5, "the store is ill") if part == 2 else None
    held = announce(ranges, [(0, 0, 9), (2, 0, 9)], keeps_pages=keeps_pages) if expects else None
    for _ in range(2):
        with pytest.raises(StorageError, match="the store is ill"):
            check(ranges, store, [(0, 0, 9), (2, 0, 9)], keeps_pages=keeps_pages)
    check(ranges, store, [(0, 0, 9)], keeps_pages=keeps_pages)
    store.fails = lambda part, start, stop: None
    check(ranges, store, [(0, 0, 9), (2, 0, 9)], keeps_pages=keeps_pages)
    del held


@pytest.mark.parametrize("keeps_pages", [False, True])
def test_a_part_that_is_gone_or_of_another_size_is_named(keeps_pages):
    store = Store()
    store.fails = lambda part, start, stop: False
    with pytest.raises(CacheFormatError, match=r"2\.mdb is missing in .*the version was removed and pruned"):
        check(store.ranges(), store, [(2, 0, 9)], keeps_pages=keeps_pages)
    store.fails = lambda *_: FetchedRange(memoryview(b"123456789"), Object("2", 9, "one", 0.0))
    with pytest.raises(CacheFormatError, match=f"has 9 bytes, not {PAGE_BYTES}"):
        check(store.ranges(), store, [(2, 0, 9)], keeps_pages=keeps_pages)


def test_an_answer_of_too_few_bytes_is_no_answer():
    store = Store()
    store.fails = lambda *_: FetchedRange(memoryview(b"1234"), Object("2", PAGE_BYTES, "one", 0.0))
    with pytest.raises(StorageError, match="4 bytes of the 9"):
        check(store.ranges(), store, [(2, 0, 9)])


def test_a_part_that_is_replaced_while_it_is_read_is_an_error():
    store = Store()
    ranges = store.ranges()
    check(ranges, store, [(0, 0, 9)])
    store.tag = "two"
    check(ranges, store, [(2, 0, 9)])  # which was not read before
    with pytest.raises(ReplacedError, match="replaced or deleted while it was read"):
        check(ranges, store, [(0, 0, 9)])


def test_first_answers_that_come_side_by_side_must_be_of_one_object():
    store = Store()
    ranges = store.ranges()
    tags = iter("ab")
    store.fails = lambda part, start, stop: FetchedRange(
        memoryview(store.parts[0][start:stop]), Object("0", int(SIZES[0]), next(tags), 0.0)
    )
    with pytest.raises(ReplacedError):
        check(ranges, store, [(0, 0, 9), (0, 100_000, 9)])


def test_a_part_that_was_found_damaged_is_not_read_any_more():
    store = Store()
    ranges = store.ranges()
    held = announce(ranges, [(0, 0, 9)])
    ranges.mark_damaged(0, CacheFormatError("it is damaged"))
    check(ranges, store, [(2, 0, 9)])
    assert len(held.extents) == 1
    for keeps_pages in (False, True):
        with pytest.raises(CacheFormatError, match="it is damaged"):
            check(ranges, store, [(2, 0, 9), (0, 0, 9)], keeps_pages=keeps_pages)


def test_what_is_waited_for_comes_before_what_is_read_ahead(monkeypatch):
    set_constants(monkeypatch, THREADS=1)
    store = Store()
    ranges = store.ranges()
    store.gate.clear()
    held = announce(ranges, [(0, 10_000 * number, 9) for number in range(5)])
    wait_until(lambda: store.asked, "the first request")
    reader = threading.Thread(target=check, args=(ranges, store, [(2, 0, 9), (2, 9999, 9)]))
    reader.start()
    wait_until(lambda: ranges._threads()._jobs[0][0].args[0].file == 2, "what is urgent")
    store.gate.set()
    reader.join()
    wait_until(lambda: len(store.asked) == 7, "all requests")
    assert [part for part, _, _ in store.asked] == [0, 2, 2, 0, 0, 0, 0]
    assert [start for _, start, _ in store.asked[1:3]] == [0, 9999]
    assert len(held.extents) == 5


def test_many_threads_read_what_others_expected():
    store = Store()
    ranges = store.ranges()

    def read(seed):
        for turn in range(20):
            spans = anywhere(store, 30, 100 * seed + turn)
            held = announce(ranges, spans, keeps_pages=bool(seed % 2))
            check(ranges, store, spans[::-1], keeps_pages=bool(seed % 3))
            del held

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def test_a_fork_begins_anew_and_both_sides_go_on():
    store = Store()
    ranges = store.ranges()
    store.gate.clear()
    held = announce(ranges, [(0, 0, 9)])
    wait_until(lambda: store.asked, "a request under way")

    def forked():
        store.gate = threading.Event()  # as a lock would be, it is held for ever here
        store.gate.set()
        check(ranges, store, anywhere(store, 50))
        return ranges.received[0] == len(store.asked) - 1

    assert in_fork(forked)
    store.gate.set()
    check(ranges, store, [(0, 0, 9), *anywhere(store, 50)])
    del held


def test_threads_end_with_who_reads():
    def reading():
        return [thread for thread in threading.enumerate() if thread.name == "yogadl-ranges"]

    before = set(reading())
    store = Store()
    ranges = store.ranges()
    check(ranges, store, anywhere(store, 50))
    assert set(reading()) - before
    del ranges
    wait_until(lambda: not set(reading()) - before, "the end of the threads")


_AT_EXIT = """
import threading, time, numpy as np
from test_storage_ranges import Store, announce, arrays
store = Store()
store.gate.clear()
ranges = store.ranges()
spans = [(0, 10_000 * number, 9) for number in range(15)]
held = announce(ranges, spans)

def read():
    try:
        ranges.read(*arrays(spans), keeps_pages=False)
    except BaseException as error:
        print(type(error).__name__, flush=True)

threading.Thread(target=read, daemon={daemon}).start()
while not store.asked:
    time.sleep(0.01)
threading.Timer(0.5, store.gate.set).start()
"""


@pytest.mark.parametrize("daemon", [True, False])
def test_an_interpreter_ends_under_requests(daemon):
    script = _AT_EXIT.format(daemon=daemon)
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert time.monotonic() - began < 60


def test_requests_that_were_allowed_are_made_and_no_more():
    store = Store()
    spending = Spending(yogadl.Limits(requests=3))
    ranges = store.ranges(spending)
    check(ranges, store, [(0, 0, 9), (0, 10_000, 9), (2, 0, 9)])
    with pytest.raises(SpendingError, match=r"3 requests were made, which is the limit, and 27 B received"):
        check(ranges, store, [(0, 0, 9)])
    assert len(store.asked) == 3
    with pytest.raises(OSError, match=r"raise Limits\(requests=\.\.\.\)"):
        check(store.ranges(spending), store, [(0, 0, 9)])  # another cache of the same storage


def test_no_more_requests_are_made_a_second_than_are_allowed(monkeypatch):
    now, slept = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    spending = Spending(yogadl.Limits(requests_per_s=4))
    for _ in range(3):
        spending.take_request()
    now[0] += 10
    spending.take_request()
    assert slept == [0.25, 0.5]
