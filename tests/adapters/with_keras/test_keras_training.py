"""Keras's own loops over a stream, on two backends: every record once, the stream's order, exact stops."""

import json
from importlib.util import find_spec
from pathlib import Path

import keras_job
import numpy as np
import pytest
from programs import programs

# On JAX, tests/together has its fit.
BACKENDS = [name for name in ("torch", "tensorflow") if find_spec(name)]
JOB = Path(keras_job.__file__)
EPOCHS, KILLED_AFTER, EVERY = 3, 22, 5  # of 15 batches an epoch: killed in the second


def start(backend, *tasks):
    """Run tasks one after another in a process of its own."""
    return programs(f"keras on {backend}").start(JOB, json.dumps(tasks))


class Runs:
    """What the processes of one backend did."""

    def __init__(self, backend, root, folder):
        self.backend, self.folder = backend, folder

        def task(name, function, **given):
            return [name, function, {"root": str(root), **given}]

        saved = {"path": str(folder / "killed.keras"), "epochs": EPOCHS}
        killed = start(backend, task("", "train", kill_after=KILLED_AFTER, every_batches=EVERY, **saved))
        tasks = [
            task("by hand", "by_hand", batches=30),
            task("fitted", "fitted", epochs=2),
            task("unbuilt", "count", epochs=2),
            task("evaluated", "evaluate"),
            task("finite", "fit_finite"),
            task("without end", "read_without_end"),
            task("whole", "train", path=str(folder / "whole.keras"), epochs=EPOCHS),
        ]
        if backend != "torch":  # which knows no other number than 1
            for name, stop in (("whole by 4", None), ("begun by 4", 2), ("rest by 4", None)):
                path = str(folder / f"{'whole' if name[0] == 'w' else 'begun'}-4.keras")
                tasks.append(task(name, "train", path=path, epochs=2, stop_after=stop, execution=4))
        if backend == BACKENDS[0]:
            tasks += [
                task("shards", "evaluate_shards"),
                task("finite in order", "fit_finite_in_order"),
                task("wrong dataset", "wrong_dataset", path=str(folder / "wrong.keras")),
                task("without steps", "without_steps", path=str(folder / "endless.keras")),
                task("backed up", "backed_up", folder=str(folder / "backup"), save_freq=4),
                task("backed up at ends", "backed_up", folder=str(folder / "backup-2"), save_freq="epoch"),
                task("stops", "stops", folder=str(folder / "stops")),
            ]
            for number, stop in enumerate((4, 15, 20, None)):  # within an epoch, at its end, twice in all
                path = str(folder / "stopped.keras")
                tasks.append(task(f"stop {number}", "train", path=path, epochs=EPOCHS, stop_after=stop))
            for name, stop, size in (("in eights", 4, 8), ("in elevens", None, 11)):
                path = str(folder / "sizes.keras")
                tasks.append(task(name, "train", path=path, epochs=EPOCHS, stop_after=stop, batch=size))
        main = start(backend, *tasks)
        self.kill_code = killed.wait()
        self.files = sorted(path.name for path in folder.glob("killed*"))
        resumed = start(backend, task("resumed", "train", **saved))
        self.found = main.answer() | resumed.answer()

    def __getitem__(self, name):
        return self.found[name]


@pytest.fixture(scope="module", params=BACKENDS)
def runs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    keras_job.build(folder / "caches")
    return Runs(request.param, folder / "caches", folder)


# What the adapter does by itself is the same on all of them.
ON_ONE = pytest.mark.parametrize("runs", BACKENDS[:1], indirect=True)


def equal(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_what_keras_asks_for_to_build_a_model_is_not_lost(runs):
    assert runs["unbuilt"] == [2] * keras_job.RECORDS


def test_fit_trains_in_the_order_of_the_stream(runs):
    assert equal(runs["fitted"], runs["by hand"])


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(runs):
    assert runs.kill_code == -9
    assert runs.files == ["killed.keras"]
    assert runs["resumed"]["begun"] == [1, 5]  # 20 batches were saved, 22 done
    assert equal(runs["resumed"]["weights"], runs["whole"]["weights"])
    assert runs["resumed"]["cursor"] == runs["whole"]["cursor"]


@ON_ONE
def test_keras_own_backup_within_an_epoch_reads_records_again_and_the_dataset_says_so(runs):
    found = runs["backed up"]
    expected = np.full(keras_job.RECORDS, 2)
    expected[found["twice"]] += 1  # of the four batches whose weights were saved
    assert found["counts"] == expected.tolist()
    assert len(found["said"]) == 2  # in each fit, and not of what is validated
    assert "every_batches=" in found["said"][0]


@ON_ONE
def test_of_a_backup_at_epochs_ends_nothing_is_said(runs):
    assert runs["backed up at ends"]["said"] == []
    assert runs["backed up at ends"]["counts"] == [2] * keras_job.RECORDS  # none was saved


@ON_ONE
def test_a_training_that_was_stopped_again_and_again_ends_with_the_same_weights(runs):
    begun = [runs[f"stop {number}"]["begun"] for number in range(4)]
    assert begun == [[0, 0], [0, 4], [1, 4], [2, 9]]
    assert runs["stop 3"]["ended"] == [EPOCHS, 0]
    assert equal(runs["stop 3"]["weights"], runs["whole"]["weights"])


@ON_ONE
def test_a_training_goes_on_from_a_checkpoint_after_any_batch_of_three_epochs(runs):
    """Also from the one of an epoch's last batch, and where other batches leave nothing of the epoch."""
    found = runs["stops"]
    assert len(found) == 2 * 3 * 4 + 3 * 3
    for one in found:
        assert equal(one["weights"], one["expected"]), {**one, "weights": None, "expected": None}


def test_the_cursor_after_a_training_is_at_the_end_of_its_last_epoch(runs):
    cursor = runs["whole"]["cursor"]
    assert (cursor["epoch"], cursor["position"]) == (EPOCHS - 1, keras_job.RECORDS)


@ON_ONE
def test_a_training_goes_on_in_batches_of_another_size(runs):
    assert runs["in eights"]["ended"] == [0, 4]
    assert runs["in elevens"]["begun"] == [0, 3]  # 8 batches of 11 are left, of 11 in an epoch
    assert runs["in elevens"]["ended"] == [EPOCHS, 0]
    assert runs["in elevens"]["cursor"] == runs["whole"]["cursor"]


@pytest.mark.parametrize("runs", [name for name in BACKENDS if name != "torch"], indirect=True)
def test_several_steps_an_execution_are_counted_as_they_are_consumed(runs):
    assert runs["rest by 4"]["begun"] == [0, 8]
    assert equal(runs["rest by 4"]["weights"], runs["whole by 4"]["weights"])
    assert runs["rest by 4"]["cursor"] == runs["whole by 4"]["cursor"]


def test_evaluate_and_predict_read_all_records_each_time(runs):
    found = runs["evaluated"]
    assert found["losses"][0] == found["losses"][1]
    assert found["predicted"][0] == found["predicted"][1]
    np.testing.assert_allclose(found["predicted"][0], found["expected"], rtol=1e-4, atol=1e-5)


@ON_ONE
def test_what_ranks_evaluate_adds_up_to_what_one_does(runs):
    found = runs["shards"]
    assert found["uneven"] == pytest.approx(found["whole"], rel=1e-5)
    assert found["padded"] == pytest.approx(found["whole"], rel=1e-5)


def test_a_dataset_that_ends_validates(runs):
    within, after = runs["evaluated"]["validated"]
    assert within == pytest.approx(after, rel=1e-4)


def test_a_dataset_that_ends_is_not_trained_on_in_keras_own_order(runs):
    """However it was read before, and however Keras's dice fall."""
    assert len(runs["finite"]) == 2 * 6
    for refusal in runs["finite"]:
        assert refusal.startswith(
            "ConfigurationError: Keras's fit shuffles the batches of a dataset that ends"
        )


@ON_ONE
def test_a_dataset_that_ends_is_trained_on_in_its_order_without_shuffle(runs):
    assert equal(*runs["finite in order"])


def test_a_dataset_without_end_is_not_read_without_a_number_of_steps(runs):
    fit, evaluate, predict, validate = runs["without end"]
    for refusal in (fit, evaluate, predict, validate):
        assert "ConfigurationError: the dataset has no end, so Keras must be told" in refusal
        assert "steps_per_epoch=dataset.steps_per_epoch" in refusal


@ON_ONE
def test_a_checkpoint_notices_that_fit_reads_another_dataset(runs):
    assert "ConfigurationError: fit consumed 3 batches" in runs["wrong dataset"]


@ON_ONE
def test_a_checkpoint_asks_for_the_number_of_steps(runs):
    assert "ConfigurationError: the dataset has no end, so Keras must be told" in runs["without steps"]


RANK = """
    import sys, warnings
    import numpy as np
    import torch.distributed
    import yogadl
    from yogadl.adapters import keras as adapter

    torch.distributed.init_process_group("gloo", f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
    ref = yogadl.from_source({"x": np.arange(10.0)})
    for options in ({"shard_rank": 1, "num_shards": 2}, {}):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapter.PyDataset(ref.stream(**options), 2, epochs=None)
            adapter.PyDataset(ref.stream(), 2, epochs=1)
        print([str(warning.message) for warning in caught if "unsharded" in str(warning.message)])
    torch.distributed.barrier()  # who ends earlier breaks the other's connecting
    torch.distributed.destroy_process_group()
    """


@pytest.mark.skipif("torch" not in BACKENDS, reason="needs PyTorch")
def test_an_unsharded_stream_among_several_ranks_is_warned_of(tmp_path):
    ranks = [programs("keras on torch").start(RANK, tmp_path / "store", rank) for rank in range(2)]
    for rank in ranks:
        ended = rank.ended()
        assert ended.returncode == 0, ended.stderr
        sharded, unsharded = ended.stdout.splitlines()[-2:]
        assert sharded == "[]"
        assert "each of the 2 ranks reads every record" in unsharded
