"""A store of which too little comes, or that asks to be left alone: the patience bounds what it costs."""

import errno
import threading
import time

import numpy as np
import pytest
from inside import PROGRESS_BYTES, RetryPolicy, read
from store_proxy import Answer, refuses, resets, stalls
from turns import rest_of

import yogadl
from yogadl.errors import StorageError

SIZE_BYTES = 3 * PROGRESS_BYTES
CONTENT = bytes(range(256)) * (SIZE_BYTES // 256)
PATIENCE_S = 0.5
PATIENT = RetryPolicy(30, PATIENCE_S)
LONGER_S = 2.0  # where a busy machine must keep within it
# Beside what is promised, for a busy machine.
BOUND_S = PATIENCE_S + 2 + 6


def delays(exchange):
    """Answer after 30 seconds, if the client is still there."""
    exchange.handler.connection.settimeout(30)
    try:
        exchange.handler.connection.recv(1)
    except TimeoutError:
        exchange.passes()
    else:
        exchange.close()


def trickles(exchange, after=0):
    """Send the head and some of the body, then a byte a moment, which keeps the connection alive."""
    answer = exchange.ask()
    exchange.send(answer, after)
    pause = threading.Event()
    for place in range(after, len(answer.body)):
        exchange.handler.connection.sendall(answer.body[place : place + 1])
        pause.wait(0.2)
    pause.wait(60)


def promises_much(exchange):
    """Send the answer as if 2^50 bytes were to follow, and go silent."""
    answer = exchange.ask()
    headers = [(name, value) for name, value in answer.headers if name.lower() != "content-length"]
    exchange.send(Answer(answer.status, [*headers, ("Content-Length", str(2**50))], answer.body[:100]))
    exchange.stall()


SILENCES = {
    "delay": delays,
    "stall": stalls(),
    "stall in the body": stalls(100),
    "a byte a moment": trickles,
    "2^50 bytes": promises_much,
    "reset": resets(),
    "503": refuses(503, "SlowDown"),
    "reset in the body": resets(0),
    "429": refuses(429, "TooManyRequests"),
}
OPERATIONS = {
    "get": lambda bucket, _: read(bucket, "name"),
    "range": lambda bucket, _: bucket.fetch_range("name", 0, 1000),
    "large range": lambda bucket, _: bucket.fetch_range("name", 0, SIZE_BYTES),
    "head": lambda bucket, _: bucket.head("name"),
    "list": lambda bucket, _: list(bucket.list()),
    "put": lambda bucket, _: bucket.put("other", CONTENT),
    "small put": lambda bucket, _: bucket.put("other", b"content"),
    "put of a file": lambda bucket, path: bucket.put("other", path),
    "put if absent": lambda bucket, _: bucket.put_if_absent("other", b"token"),
    "delete": lambda bucket, _: bucket.delete("name"),
}


# Each operation meets each silence, and both of them each store.
SILENT = [
    (operation, silence, ("s3", "gcs")[(number + other) % 2])
    for number, operation in enumerate(OPERATIONS)
    for other, silence in enumerate(SILENCES)
    if operation in ("get", "range", "large range", "list") or silence in ("delay", "stall", "reset", "503")
]


@pytest.mark.parametrize(
    ("operation", "silence", "broken"), SILENT, indirect=["broken"], ids=map("-".join, SILENT)
)
def test_an_operation_of_which_too_little_comes_ends(broken, tmp_path, operation, silence):
    place, proxy = broken
    place.open().put("name", CONTENT)
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    bucket = place.open(patience=PATIENT)
    proxy.breaks(lambda _: True, SILENCES[silence])
    begun = time.monotonic()
    with pytest.raises(
        StorageError, match=r"can't (read|write|list|delete) .*/some/root.*tried \d+ times"
    ) as e:
        OPERATIONS[operation](bucket, path)
    assert time.monotonic() - begun < BOUND_S
    assert e.value.errno == errno.EAGAIN


def test_what_trickles_after_some_of_it_came_ends(broken):
    place, proxy = broken
    place.open().put("name", CONTENT)
    proxy.breaks(of_name, lambda exchange: trickles(exchange, PROGRESS_BYTES + 1))
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"can't read .*fewer than 64 KiB were sent or received in 0\.5 s"):
        place.open(patience=PATIENT).fetch_range("name", 0, SIZE_BYTES)
    assert time.monotonic() - begun < BOUND_S


@pytest.mark.parametrize("stop", [None, SIZE_BYTES])
def test_what_is_slow_takes_as_long_as_it_needs(broken, stop):
    place, proxy = broken
    place.open().put("name", CONTENT)
    gaps = threading.Event()

    def slowly(exchange):
        answer = exchange.ask()
        exchange.send(answer, 0)
        for start in range(0, len(answer.body), PROGRESS_BYTES):
            gaps.wait(0.5 * LONGER_S)
            exchange.handler.connection.sendall(answer.body[start : start + PROGRESS_BYTES])

    proxy.breaks(of_name, slowly)
    begun = time.monotonic()
    assert read(place.open(patience=RetryPolicy(30, LONGER_S)), "name", 0, stop) == CONTENT
    assert time.monotonic() - begun > LONGER_S


STREAMS = {
    "alone": lambda batches: batches,
    "ahead": lambda batches: batches.prefetch(2),
    "workers": lambda batches: batches.prefetch(2, workers=2),
}
WHOLE_S = 3.0


@pytest.mark.parametrize("kind", STREAMS)
def test_a_batch_of_many_ranges_waits_for_a_silent_store_once(broken, kind):
    """Not once for each round of ranges that wait for a thread, nor again to find the failing item."""
    place, proxy = broken
    options = {**place.options, "mirror": None}
    yogadl.open_storage(place.url, **options).submit({"row": np.zeros((5000, 4000), np.uint8)}, "rows", "1")
    ref = yogadl.open_storage(place.url, **options, patience_s=WHOLE_S).fetch("rows", "1")
    batches = iter(STREAMS[kind](ref.stream(shuffle=True).batch(500)))
    next(batches)
    proxy.breaks(lambda _: True, stalls())
    begun = time.monotonic()
    with pytest.raises(StorageError):  # noqa: PT012  (what was ready comes first)
        while True:
            begun = time.monotonic()
            next(batches)
    assert time.monotonic() - begun < 4 * WHOLE_S
    begun = time.monotonic()
    with pytest.raises(StorageError):  # workers still wait for what was asked for before
        next(batches)
    assert time.monotonic() - begun < 2 * WHOLE_S
    proxy.rules.clear()
    assert len(rest_of(iter(ref.stream().batch(500)))) == 10


@pytest.mark.parametrize("broken", ["s3"], indirect=True)
@pytest.mark.parametrize("what", ["parts/", "versions/"])
def test_a_build_waits_for_a_silent_store_once(broken, what):
    """Not again to look whether another builder has taken over, to end the lease and to clean up."""
    place, proxy = broken
    options = {**place.options, "mirror": None}
    storage = yogadl.open_storage(place.url, **options, patience_s=WHOLE_S)
    silent = []

    def takes(request):
        if not silent and request.is_write and what in request.name:
            silent.append(time.monotonic())
        return bool(silent)

    proxy.breaks(takes, stalls())
    with pytest.raises(StorageError, match=f"can't write .*{what}"):
        storage.submit([1, 2], "set", "1")
    assert time.monotonic() - silent[0] < 2.5 * WHOLE_S
    proxy.rules.clear()
    storage.submit([1, 2], "set", "2")
    assert len(storage.fetch("set", "2")) == 2


def test_a_fetch_from_a_silent_store_ends(broken):
    place, proxy = broken
    place.storage().submit([1, 2], "set", "1")
    storage = place.storage(patience_s=PATIENCE_S)
    proxy.breaks(lambda _: True, delays)
    begun = time.monotonic()
    with pytest.raises(StorageError):
        storage.fetch("set", "1")
    assert time.monotonic() - begun < BOUND_S


def of_name(request):
    return request.is_of_bytes and "/name" in request.name


def busy(after, status):
    headers = [("Retry-After", after), ("Content-Length", "0")]
    return lambda exchange: exchange.send(Answer(status, headers, b""))


# Each operation meets each status and each store, and they each other.
BUSY = [
    (operation, (429, 503)[(number + other) % 2], store)
    for number, operation in enumerate(["get", "range", "large range", "list", "put", "put of a file"])
    for other, store in enumerate(["s3", "gcs"])
]


@pytest.mark.parametrize(("operation", "status", "broken"), BUSY, indirect=["broken"])
def test_a_store_is_asked_again_when_it_wants_to_be(broken, tmp_path, operation, status):
    place, proxy = broken
    place.open().put("name", CONTENT)
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    bucket = place.open(patience=RetryPolicy(30, 60))
    times = []

    def takes(request):
        if request.path.startswith("/storage/") and "/o" not in request.path:
            return False  # Google's SDK looks at the bucket first, and does not mind what it is told
        times.append(time.monotonic())
        return True

    # obstore does not tell for how long, so the SDK asks, too, after a pause.
    pauses_s = [0.5, 1] if operation in ("range", "large range") else [1]
    proxy.breaks(takes, busy("1", status), times=len(pauses_s))
    OPERATIONS[operation](bucket, path)
    times.append(time.monotonic())
    gaps_s = np.diff(times[: len(pauses_s) + 1])
    assert (gaps_s >= pauses_s).all()


@pytest.mark.parametrize("size_bytes", [1000, PROGRESS_BYTES, PROGRESS_BYTES + 1, SIZE_BYTES])
def test_after_a_busy_answer_ranges_go_by_the_sdk_which_tells_how_long_to_wait(broken, size_bytes):
    place, proxy = broken
    place.open().put("name", CONTENT)
    bucket = place.open(patience=RetryPolicy(30, 60))
    asked = []

    def takes(request):
        if of_name(request):
            asked.append((time.monotonic(), request.headers["User-Agent"].endswith("obstore")))
        return of_name(request) and len(asked) == 1

    proxy.breaks(takes, busy("5", 429))
    for _ in range(2):
        found = bucket.fetch_range("name", 0, size_bytes)
        assert found is not None
        assert found.content == CONTENT[:size_bytes]
    assert asked[1][0] - asked[0][0] >= 0.5
    assert [by_obstore for _, by_obstore in asked] == [True, False, False]


def test_a_store_that_wants_to_be_left_alone_for_a_day_is_asked_once_more(broken):
    place, proxy = broken
    place.open().put("name", CONTENT)
    bucket = place.open(patience=RetryPolicy(30, LONGER_S))
    proxy.breaks(of_name, busy("100000", 429))
    begun = time.monotonic()
    with pytest.raises(StorageError, match="tried 2 times"):
        read(bucket, "name")
    assert time.monotonic() - begun < BOUND_S + LONGER_S
    assert sum(map(of_name, proxy.requests)) == 2
