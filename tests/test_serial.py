"""Calls in a thread of their own: `SerialExecutor`."""

import threading

import pytest
from inside import SerialExecutor


def test_an_executor_whose_thread_can_not_start_can_be_shut_down(monkeypatch):
    """As while the interpreter ends: the error of the start once gave way to one of `join`."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"), SerialExecutor() as pool:
            pool.submit(int)


def test_a_thread_that_could_not_start_is_started_by_the_next_call(monkeypatch):
    """The call would wait for ever for a thread that there is not."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    with SerialExecutor() as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.submit(int)
        assert pool.submit(int).result(30) == 0
