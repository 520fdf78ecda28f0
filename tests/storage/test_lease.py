"""Leases: who may build, who waits, who takes over, and what the others are told."""

import contextlib
import io
import json
import logging
import os
import pickle
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from inside import (
    BucketRoot,
    BuildLease,
    DatasetKey,
    Lease,
    LeaseLostError,
    Leases,
    LeaseState,
    LocalBucket,
    SilenceTimer,
    _names,
    heartbeat,
    read,
    retry_ending,
    set_constants,
)
from processes import in_fork, wait_until

from yogadl.errors import LeaseError

KEY = DatasetKey("some/data", "1/2")


@pytest.fixture
def bucket(tmp_path):
    return LocalBucket(tmp_path / "bucket")


@pytest.fixture
def hurried(monkeypatch):
    """Let a time to live be less than a second, and look and say often."""
    set_constants(
        monkeypatch, MIN_TTL_S=0.1, FIRST_PAUSE_S=0.01, LONGEST_PAUSE_S=0.05, WAITING_LOG_AFTER_S=0.1
    )


@pytest.fixture
def leases(bucket):
    return Leases(BucketRoot(bucket), Lease())


def objects(bucket):
    below = f"{_names.leases(KEY)}/"
    return [found.name.removeprefix(below) for found in bucket.list(below)]


def held_by_others(bucket, term=1, **body):
    """Write the lease of a builder on another machine, who gives no sign of life."""
    document = {"token": "theirs", "host": "far-away", "pid": 123, "started": 1e9, "ttl_s": 1.0, **body}
    assert bucket.put_if_absent(_names.lease(KEY, term), json.dumps(document).encode())


def leases_of(bucket, **policy):
    return Leases(BucketRoot(bucket), Lease(**policy))


@contextlib.contextmanager
def held(leases, key=KEY):
    """Hold the lease of a version, whose need nobody asks about."""
    with leases.held(key) as lease:
        assert lease is not None
        yield lease


def refused(leases, says=None, key=KEY):
    """Return why a lease is not given."""
    with pytest.raises(LeaseError, match=says) as caught, leases.held(key):
        pass
    return str(caught.value)


# Watching.


def test_silence_counts_from_the_last_change():
    watch = SilenceTimer()
    assert watch.silence_s(LeaseState(3, "a", False), 10.0, 10.5) == 0
    assert watch.silence_s(LeaseState(3, "a", False), 14.0, 14.5) == 3.5
    assert watch.silence_s(LeaseState(3, "b", False), 20.0, 20.5) == 0
    assert watch.silence_s(LeaseState(3, "b", False), 21.5, 22.0) == 1.0


def test_a_new_builder_is_a_change():
    watch = SilenceTimer()
    watch.silence_s(LeaseState(3, "a", False), 0.0, 0.0)
    assert watch.silence_s(LeaseState(4, "a", False), 500.0, 500.0) == 0


def test_who_was_stopped_while_the_store_answered_counts_no_silence_for_that():
    watch = SilenceTimer()
    watch.silence_s(LeaseState(1, "a", False), 0.0, 0.0)
    # The answer is from about 1.0; the hour until it was looked at says nothing.
    assert watch.silence_s(LeaseState(1, "a", False), 1.0, 3_600.0) == 1.0


# Holding.


def test_terms_count_up_and_old_leases_are_cleared(leases, bucket):
    for term in (1, 2, 3):
        with held(leases) as lease:
            assert lease.term == term
            assert objects(bucket) == [f"{term:010d}"]
        assert objects(bucket) == [f"{term:010d}", f"{term:010d}.end"]


def test_one_at_a_time_holds_it(leases):
    inside = threading.Lock()

    def build(_):
        with held(leases) as lease:
            assert inside.acquire(blocking=False)
            inside.release()
            return lease.term or 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(build, range(12))) == list(range(1, 13))


def test_versions_are_held_apart(leases):
    with leases.held(KEY), leases.held(DatasetKey(KEY.id, "1")), leases.held(DatasetKey("some", "1")):
        assert leases.is_held(KEY.id, time.time())
    assert not leases.is_held(KEY.id, time.time())


def test_who_waits_leaves_as_soon_as_it_need_not_build(bucket):
    held_by_others(bucket, ttl_s=1e6)
    requested_s = []

    def is_there():
        requested_s.append(1)
        return len(requested_s) == 4

    with leases_of(bucket).held(KEY, is_there) as lease:
        assert lease is None
    assert objects(bucket) == ["0000000001"]


def test_nothing_is_taken_if_there_is_no_need(leases, bucket):
    with leases.held(KEY, lambda: True) as lease:
        assert lease is None
    assert objects(bucket) == []


def test_a_forked_child_that_leaves_the_block_ends_nothing(leases, bucket):
    with held(leases) as lease:
        pid = os.fork()
        if pid == 0:
            lease.report(1, 2, 3)
            lease.end("in the child")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not lease.is_lost()
        assert objects(bucket) == ["0000000001"]


# Leases of others that can't be right.


def test_a_lease_of_the_highest_term_is_named(leases, bucket):
    held_by_others(bucket, term=9_999_999_999)
    bucket.put(_names.lease(KEY, 9_999_999_999) + _names.END_SUFFIX, b"{}")
    says = r"9999999999 has the highest possible number.*delete it, then build"
    refused(leases, says)
    with pytest.raises(LeaseError, match="highest possible number"), leases.held(KEY, lambda: False):
        pass


class Forgetful(LocalBucket):
    """A store whose lists leave objects out."""

    def list(self, below):
        return iter(())


def test_a_lease_that_the_store_does_not_list_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    bucket = Forgetful(tmp_path / "bucket")
    held_by_others(bucket)
    says = r"0000000001 can't be written.* remove it, then build again"
    refused(leases_of(bucket), says)


# Taking over.


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(("theirs_s", "ours_s"), [(0.6, 0.1), (0.1, 0.6)])
def test_a_silent_builder_is_taken_over_after_the_larger_time_to_live(bucket, theirs_s, ours_s):
    held_by_others(bucket, ttl_s=theirs_s)
    started = time.monotonic()
    with held(leases_of(bucket, ttl_s=ours_s)) as lease:
        assert lease.term == 2
        assert time.monotonic() - started >= 0.6


def test_an_impatient_caller_robs_no_live_builder(bucket):
    with held(leases_of(bucket, ttl_s=600)) as lease:
        impatient = leases_of(bucket, ttl_s=1, wait_s=3)
        refused(impatient)
        lease.check()


def test_the_clocks_of_other_machines_do_not_count(bucket):
    held_by_others(bucket, started=time.time() - 86_400, ttl_s=600)
    os.utime(next(Path(bucket._folder.root).rglob("0000000001")), (1e9, 1e9))
    refused(leases_of(bucket, ttl_s=1, wait_s=2))


def test_who_was_taken_over_is_told(bucket):
    with held(leases_of(bucket)) as lease:
        lease.check()
        held_by_others(bucket, term=2)
        assert lease.is_lost()
        with pytest.raises(LeaseError, match="another process has taken over the lease"):
            lease.check()


def test_who_sleeps_until_the_leases_are_pruned_has_lost_the_right_and_ends_nobody_elses(leases, bucket):
    with held(leases) as first:
        first.stop_heartbeat()
        for name in objects(bucket):
            bucket.delete(f"{_names.leases(KEY)}/{name}")
        with held(leases) as second:
            assert second.term == first.term == 1
            with pytest.raises(LeaseLostError):
                first.check()
            first.end(None)
            assert not second.is_lost()
            assert leases.is_held(KEY.id, time.time())


def fail_in_the_way_of(path, leases):
    with leases.held(KEY):
        path.mkdir()
        _ = 1 // 0


def test_who_writes_an_end_in_the_background_holds_no_output_open(leases, bucket):
    end = bucket._folder.path(_names.lease(KEY, 1) + _names.END_SUFFIX)
    reading, writing = os.pipe()

    def fail():
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(writing)
        with pytest.raises(ZeroDivisionError):
            fail_in_the_way_of(end, leases)

    in_fork(fail)
    os.close(writing)
    with open(reading, "rb") as output:
        assert select.select([output], [], [], 60)[0]
        assert output.read() == b""
    assert end.is_dir()
    end.rmdir()
    wait_until(end.is_file, "the end of the lease")


def test_a_build_that_fails_while_nothing_can_be_written_keeps_nobody_waiting_once_it_can(
    leases, bucket, caplog
):
    caplog.set_level(logging.WARNING, "yogadl")
    in_the_way = bucket._folder.path(_names.lease(KEY, 1) + _names.END_SUFFIX)

    with pytest.raises(ZeroDivisionError):
        fail_in_the_way_of(in_the_way, leases)
    assert "can't write that the build of" in caplog.text
    in_the_way.rmdir()
    with held(leases_of(bucket, wait_s=100)) as lease:
        assert lease.term == 2


def test_who_ends_later_ends_nobody_elses_lease(leases, bucket):
    with held(leases) as first:
        bucket.delete(_names.lease(KEY, 1))
        with held(leases):
            task = pickle.dumps((first._task, first._ending(None), 60.0, False))
            retry_ending(task)
            assert objects(bucket) == ["0000000001"]


def test_a_lease_that_appears_after_its_builder_gave_up_is_ended(leases, bucket, monkeypatch):
    with held(leases) as lease:
        name = _names.lease(KEY, 1)
        body = bucket._folder.path(name).read_bytes()
        bucket.delete(name)
        monkeypatch.setattr(heartbeat.time, "sleep", lambda _: bucket.put(name, body))
        retry_ending(pickle.dumps((lease._task, lease._ending(None), 60.0, True)))
        assert objects(bucket) == ["0000000001", "0000000001.end"]


def test_who_is_interrupted_as_it_ends_keeps_nobody_waiting(leases, bucket, monkeypatch):
    def interrupted(lease):
        stop_heartbeat(lease)
        raise KeyboardInterrupt

    stop_heartbeat = BuildLease.stop_heartbeat
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), leases.held(KEY):
        patched.setattr(BuildLease, "stop_heartbeat", interrupted)
    with held(leases_of(bucket, wait_s=100)):
        pass


def test_a_builder_that_dies_once_its_lease_has_ended_is_not_said_to_have_failed(leases, bucket):
    with held(leases) as lease:
        pass
    nobody = 0
    heartbeat.main(io.BytesIO(), pickle.dumps((nobody, lease._task)))
    assert json.loads(read(bucket, lease._task.end_name) or b"") == {"token": lease._token, "failed": None}


def test_signs_of_life_import_nothing_of_the_current_folder(bucket, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    for name in ("operator", "pickle", "json", "select"):
        (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('not to be imported')")
    monkeypatch.chdir(tmp_path / "here")
    with leases_of(bucket, ttl_s=1).held(KEY):
        wait_until(lambda: "0000000001.beat" in objects(bucket), "a heartbeat")


def test_objects_of_others_among_the_leases_are_left_alone(leases, bucket):
    for name in ("notes.txt", "12.beat", "9999999999.old"):
        bucket.put(f"{_names.leases(KEY)}/{name}", b"not ours")
    with held(leases) as lease:
        assert lease.term == 1
    assert {"notes.txt", "12.beat", "9999999999.old"} <= set(objects(bucket))


# Telling.


def test_who_waits_too_long_learns_who_builds_and_how_to_clear_it(bucket):
    held_by_others(bucket, ttl_s=600)
    heartbeat = {"token": "theirs", "count": 1, "progress": {"records": 17, "total": 2_000, "bytes": 5}}
    bucket.put(_names.lease(KEY, 1) + _names.HEARTBEAT_SUFFIX, json.dumps(heartbeat).encode())
    message = refused(leases_of(bucket, wait_s=0.2))
    for part in (
        str(KEY),
        "process 123 on far-away",
        "since 2001-09-",
        "17 of 2000 records",
        _names.leases(KEY),
    ):
        assert part in message


@pytest.mark.usefixtures("hurried")
def test_who_waits_says_for_whom(bucket, caplog):
    held_by_others(bucket, ttl_s=600)
    caplog.set_level(logging.WARNING, "yogadl")
    refused(leases_of(bucket, wait_s=1))
    assert f"waiting for {KEY}, built by process 123 on far-away" in caplog.text
    assert "until 600 s after its last heartbeat, 1 s at most (wait_s)" in caplog.text


def test_who_waits_is_told_why_the_builder_failed(leases, bucket, caplog):
    caplog.set_level(logging.WARNING, "yogadl")
    is_waiting = threading.Event()

    def unless():
        if requested_s:
            is_waiting.set()  # it has seen the lease by now
        requested_s.append(1)
        return False

    requested_s = []

    def wait_and_build():
        with leases.held(KEY, unless) as lease:
            return lease.term

    def fail(pool):
        with leases.held(KEY):
            waiting.append(pool.submit(wait_and_build))
            assert is_waiting.wait(60)
            _ = 1 // 0

    waiting = []
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError):
            fail(pool)
        assert waiting[0].result(60) == 2
    assert "ZeroDivisionError: integer division" in caplog.text
    assert f"process {os.getpid()}" in caplog.text


def test_signs_of_life_say_how_far_the_build_is(bucket):
    def progress():
        return json.loads(read(bucket, _names.lease(KEY, 1) + _names.HEARTBEAT_SUFFIX) or b"{}").get(
            "progress"
        )

    with held(leases_of(bucket, ttl_s=1)) as lease:
        wait_until(lambda: progress() is not None, "a report")

        def is_said():
            lease.report(123, 1_000, 5_000)
            return progress() == {"records": 123, "total": 1_000, "bytes": 5_000}

        wait_until(is_said, "what is said")


def test_a_live_builder_is_seen_by_who_prunes(leases, bucket):
    assert not leases.is_held(KEY.id, time.time())
    with leases.held(KEY):
        assert leases.is_held(KEY.id, time.time())
        assert not leases.is_held("some", time.time())
        assert leases.is_held(KEY.id, time.time() + 599)
        assert not leases.is_held(KEY.id, time.time() + 10_000)  # a dead one's, by then
    assert not leases.is_held(KEY.id, time.time())


# Pruning.


def test_who_prunes_a_dataset_gives_way_to_who_builds_there(leases):
    with leases.held(KEY), leases.pruning(KEY.id, time.time()) as lease:
        assert lease is None
    with leases.held(DatasetKey("some", "1")), leases.pruning(KEY.id, time.time()) as lease:
        assert lease is not None
        with leases.pruning(KEY.id, time.time()) as second:
            assert second is None
        assert not leases.is_held(KEY.id, time.time())  # nobody builds


def test_who_builds_waits_for_who_prunes(leases, bucket):
    built = threading.Event()

    def build():
        with leases.held(KEY):
            built.set()

    building = threading.Thread(target=build)
    with leases.pruning(KEY.id, time.time()) as lease:
        assert lease is not None
        building.start()
        wait_until(lambda: objects(bucket) == ["0000000001"], "the last to go")
        assert not built.wait(0.3)
        impatient = leases_of(bucket, wait_s=0.1)
        says = f"dataset {KEY.id!r} is still being pruned"
        assert f"process {os.getpid()} on" in refused(impatient, says, DatasetKey(KEY.id, "other"))
    building.join()
    assert built.is_set()


def test_who_prunes_and_is_dead_loses_the_right_to_who_builds(bucket):
    impatient = leases_of(bucket, ttl_s=1)
    with impatient.pruning(KEY.id, time.time()) as lease:
        lease.stop_heartbeat()
        lease.check()
        with impatient.held(KEY):
            assert lease.is_lost()
            with pytest.raises(LeaseLostError, match="the lease to prune dataset 'some/data'"):
                lease.check()
    with impatient.pruning(KEY.id, time.time()) as lease:
        assert lease.term == 3


def test_who_looked_before_a_whole_build_went_by_does_not_take_its_term_again(leases, bucket):
    long_past = leases._state(KEY)
    for _ in range(2):  # the second one clears the first one's term away
        with leases.held(KEY):
            pass
    assert leases._try_acquire(KEY, long_past) is None
    assert objects(bucket) == ["0000000002", "0000000002.end"]


# Turns.


def test_who_waits_to_build_again_says_so_and_who_comes_back_lets_it_go_first(bucket):
    turns = []

    def build(name, count):
        for _ in range(count):
            with leases_of(bucket).held(KEY):
                turns.append(name)

    with ThreadPoolExecutor() as pool:
        one, two = (pool.submit(build, name, 10) for name in "ab")
        one.result()
        two.result()
    assert turns[:12].count("a") in range(2, 11)


def test_who_comes_back_lets_who_waits_go_first_after_its_own_term_alone(leases):
    def waiter():
        return heartbeat.LeaseWaiter(leases.root, leases.policy, KEY, takes_turns=True)

    with leases.held(KEY):
        waiter().pause(leases._state(KEY))
    state, back = leases._state(KEY), waiter()
    assert back.yields_turn(state, time.monotonic())
    assert not back.yields_turn(replace(state, term=state.term + 1), time.monotonic())


def test_that_somebody_waits_is_said_to_the_first_builder_too(leases, bucket):
    with leases.held(KEY):
        waiter = heartbeat.LeaseWaiter(leases.root, leases.policy, KEY, takes_turns=True)
        waiter.pause(leases._state(KEY))
        assert "0000000001.wait" in objects(bucket)


def test_that_somebody_waits_is_neither_a_lease_nor_a_sign_of_life(leases, bucket):
    bucket.put(f"{_names.lease(KEY, 7)}{_names.WAIT_SUFFIX}", b"{}")
    assert not leases.is_held(KEY.id, time.time())
    with held(leases) as lease:
        assert lease.term == 1
    with leases.held(KEY):
        pass
    bucket.put(f"{_names.lease(KEY, 1)}{_names.WAIT_SUFFIX}", b"{}")
    with leases.held(KEY):
        assert "0000000001.wait" not in objects(bucket)


def test_progress_that_is_reported_late_starts_no_heartbeat_again(bucket, monkeypatch):
    """Nothing would end that process before the end of this one, which may build for days."""
    set_constants(monkeypatch, REPORT_EVERY_S=0.0)
    name = _names.lease(KEY, 1)
    task = heartbeat.HeartbeatTask(BucketRoot(bucket), name, f"{name}.beat", f"{name}.end", "token", 1.0)
    beating = heartbeat.Heartbeat(task)
    beating.stop()
    started = []
    monkeypatch.setattr(heartbeat.subprocess, "Popen", lambda *given, **options: started.append(given))
    beating.report(1, 2, 3)
    assert not started
