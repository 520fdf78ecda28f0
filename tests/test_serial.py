"""Calls in a thread of their own: `SerialExecutor`."""

import threading

from inside import SerialExecutor


def test_calls_are_made_by_the_caller_while_no_thread_can_start_and_later_by_one(monkeypatch):
    """As while the interpreter ends, from Python 3.12 on: a build in a thread must come to its end."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    with SerialExecutor() as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert pool.submit(threading.current_thread).result(30) is threading.current_thread()
        assert pool.submit(threading.current_thread).result(30) is not threading.current_thread()


def test_an_executor_whose_thread_never_started_can_be_shut_down(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with SerialExecutor() as pool:
        assert pool.submit(int).result(30) == 0
