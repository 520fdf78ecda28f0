"""Rollouts whose drivers and workers are killed, and that go on elsewhere: each prompt ends exactly once."""

import json
import random
import time

from processes import processes, wait_until
from rollouts import drive, stream_of
from soak import few_or_many


def test_each_prompt_ends_exactly_once_however_often_a_job_is_killed(tmp_path):
    count, epochs, kills = few_or_many((400, 2, 5), (5000, 2, 100))
    draw = random.Random(1)
    before, ended, saved = [], [], 0
    for generation in range(kills + 1):
        ranks = draw.choice([1, 2, 3])
        paths = [tmp_path / f"{generation}-{rank}.json" for rank in range(ranks)]
        tasks = [(count, epochs, before, path, rank, ranks) for rank, path in enumerate(paths)]
        is_last = generation == kills
        with processes(drive, tasks) as drivers:
            wait_until(lambda paths=paths: all(path.exists() for path in paths), "the first states")
            if not is_last:
                time.sleep(draw.uniform(0, 0.8))
            for driver in drivers:
                driver.check()
                if is_last:
                    driver.result(few_or_many(120, 1200))
        # All are killed now, each at another moment after its last save. What they learnt after it is gone.
        found = [json.loads(path.read_text()) for path in paths]
        ended += [tuple(each) for rank in found for each in rank["ended"]]
        saved += sum(bool(rank["ended"]) for rank in found)
        before = paths
    iterator = stream_of(count).batch(1, epochs=epochs).at(0)
    expected = {
        (epoch, position): (int(batch["id"][0]), float(batch["noise"][0]))
        for number, batch in enumerate(iterator)
        for epoch, position in [divmod(number, count)]
    }
    assert saved > kills // 2  # otherwise nothing was tried
    assert sorted(place[:2] for place in ended) == sorted(expected)
    for epoch, position, *record in ended:
        assert record[0] is None or tuple(record) == expected[epoch, position]
    dropped = [each[:2] for rank in before for each in json.loads(rank.read_text())["state"]["dropped"]]
    assert sorted(map(tuple, dropped)) == sorted(each[:2] for each in ended if each[2] is None)
