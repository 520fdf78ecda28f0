"""What may be tried again is tried again, bounded in time."""

import contextlib
import errno
import logging
import threading
import time
from types import SimpleNamespace

import pytest
from inside import (
    Attempts,
    ResumedRead,
    Retrier,
    RetryPolicy,
    TransientError,
    UnavailableError,
    UnreachableError,
    set_constants,
)

from yogadl.errors import StorageError


class Failing:
    """Fail some times, then succeed."""

    def __init__(self, times):
        self.times = times
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.times:
            raise TransientError(errno.EAGAIN, "can't read it: it is busy")
        return "done"


def test_what_fails_some_times_is_done():
    failing = Failing(4)
    assert Retrier(RetryPolicy(1, 60)).call(failing) == "done"
    assert failing.calls == 5


def test_what_always_fails_ends_with_what_it_said():
    failing = Failing(1_000_000)
    begun = time.monotonic()
    with pytest.raises(StorageError, match=r"can't read it: it is busy \(tried \d+ times") as caught:
        Retrier(RetryPolicy(1, 1)).call(failing)
    assert time.monotonic() - begun < 30
    assert 2 < failing.calls < 20
    assert not isinstance(caught.value, TransientError)
    assert caught.value.errno == errno.EAGAIN


def test_another_error_is_raised_at_once():
    def attempt():
        raise StorageError(errno.EACCES, "no")

    with pytest.raises(StorageError, match="no"):
        Retrier(RetryPolicy(1, 60)).call(attempt)


def test_patience_is_counted_anew_when_something_came_forward():
    attempts = Attempts(Retrier(RetryPolicy(1, 0.3)))
    for _ in range(6):
        attempts.failed(TransientError(errno.EAGAIN, "busy"))
        attempts.restart()


def test_a_short_trouble_is_not_worth_a_word(caplog):
    with caplog.at_level(logging.DEBUG, "yogadl"):
        Retrier(RetryPolicy(1, 60)).call(Failing(3))
    assert not caplog.records


def test_a_store_that_is_away_is_told_of_once_for_many_operations(caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    retrier = Retrier(RetryPolicy(1, 60))
    retrier.presence.answered.set()
    for is_back, pause_s, said in ((False, 0, 1), (False, 200, 1), (True, 0, 2), (True, 0, 2), (True, 60, 3)):
        now[0] += pause_s
        if is_back:
            for _ in range(3):
                assert retrier.call(lambda: "done") == "done"
        operations = [Attempts(retrier) for _ in range(20)]
        for _ in range(3):
            for operation in operations:
                operation.failed(TransientError(errno.EAGAIN, "can't read it: it is busy"))
            now[0] += 6
        assert caplog.text.count("trying again for up to 60 s") == said
    assert caplog.text.count("the store answers again") == 2  # as often as one that was told of came back


def unreachable():
    raise UnreachableError(errno.EAGAIN, "can't read it: connection refused")


def test_what_was_never_reached_is_given_up_long_before_patience_ends(monkeypatch):
    set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=0.5)
    with pytest.raises(
        UnavailableError, match=r"tried \d+ times; this endpoint has never answered: check its host"
    ):
        Retrier(RetryPolicy(1, 100_000)).call(unreachable)


def test_what_has_answered_is_waited_for_as_long_as_patience_says(monkeypatch):
    set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=0.1)
    retrier = Retrier(RetryPolicy(1, 2))
    retrier.call(lambda: None)
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match=r"times; see whether the store is up"):
        retrier.call(unreachable)
    assert time.monotonic() - begun > 0.5


def test_a_read_that_is_given_up_says_so_if_no_thread_can_start_to_close_it(monkeypatch):
    """As while the interpreter ends, when the error was one about threads."""

    class GivenUp:
        def run(self, work):
            if self.is_over:
                raise UnavailableError(1, "the store does not answer")
            return work()

        def answered(self):
            self.is_over = True

        is_over = False

    def start(thread):
        raise RuntimeError("can't start new thread")

    body = SimpleNamespace(object=SimpleNamespace(tag="1", size_bytes=9), chunks=iter(()))
    store = SimpleNamespace(open=lambda *_, **options: contextlib.nullcontext(body), url="s3://bucket")
    attempts = GivenUp()
    reading = ResumedRead(store, "name", None, attempts)
    reading.open(0, None)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(UnavailableError, match="does not answer"):
        list(reading.chunks())
