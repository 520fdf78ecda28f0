"""make_dataloader: the stream's batches as tensors, and a cursor that counts what was delivered."""

import functools
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from failing import check_error, failing
from processes import children
from torch_ids import gold, ids
from trees import JSON_VALUES, same_json, shared_parts

import yogadl
from yogadl.adapters import torch as adapter
from yogadl.errors import (
    ConfigurationError,
    StageError,
    StorageError,
)

RECORDS = 101


def columns(count=RECORDS):
    return {
        "id": np.arange(count),
        "x": np.arange(3 * count, dtype=np.float32).reshape(count, 3),
        "name": [f"r{i}" for i in range(count)],
        "data": [bytes(i) for i in range(count)],
        "ragged": [np.arange(i % 5) for i in range(count)],
        "tree": [JSON_VALUES[i % len(JSON_VALUES)] for i in range(count)],
    }


@pytest.fixture(scope="module")
def ref(tmp_path_factory):
    storage = yogadl.open_storage(tmp_path_factory.mktemp("caches"))
    return storage.submit(columns(), "set", "1", json="tree")


def stream_of(ref, **options):
    return ref.stream(shuffle=True, shuffle_seed=3, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_the_records_tree_of_tensors_and_lists(ref, workers):
    loader = adapter.make_dataloader(stream_of(ref), 8, workers)
    wanted = columns()
    cuts = np.split(stream_of(ref).indices(), range(8, RECORDS, 8))
    for chosen, batch in zip(cuts, loader, strict=True):
        assert torch.equal(batch["id"], torch.from_numpy(wanted["id"][chosen]))
        assert torch.equal(batch["x"], torch.from_numpy(wanted["x"][chosen]))
        assert batch["x"].dtype == torch.float32
        assert batch["name"] == [wanted["name"][i] for i in chosen]
        assert batch["data"] == [wanted["data"][i] for i in chosen]
        assert [value.tolist() for value in batch["ragged"]] == [wanted["ragged"][i].tolist() for i in chosen]
        assert {type(value) for value in batch["ragged"]} == {torch.Tensor}
        assert same_json(batch["tree"], [wanted["tree"][i] for i in chosen])
        assert not shared_parts(batch["tree"])


@pytest.mark.parametrize("workers", [0, 2])
def test_one_iterator_can_read_all_epochs(ref, workers):
    stream = stream_of(ref)
    assert [
        len(adapter.make_dataloader(stream, 8, workers, drop_remainder=drop)) for drop in (False, True)
    ] == [13, 12]
    endless = iter(adapter.make_dataloader(stream, 100, workers, epochs=None))
    assert ids(next(endless) for _ in range(7)) == gold(stream, 0, 1, 2, 3)[: 3 * 101 + 100]


def test_the_number_of_workers_may_change_between_save_and_load(ref):
    state, found = None, []
    for workers in (2, 0, 3, 1):
        loader = adapter.make_dataloader(stream_of(ref), 8, workers)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found += ids(itertools.islice(loader, 3))
        state = loader.state_dict()
        assert state["position"] == len(found)
    assert found == gold(stream_of(ref), 0)[:96]


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")  # as for one process
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_saved_and_loaded_by_distributed_checkpoint(ref, workers, tmp_path):
    loader = adapter.make_dataloader(stream_of(ref), 8, workers)
    ids(loader)
    first = ids(itertools.islice(loader, 4))
    model = torch.nn.Linear(2, 2)
    dcp.save({"model": model.state_dict(), "loader": loader}, checkpoint_id=tmp_path)
    resumed = adapter.make_dataloader(stream_of(ref), 16, 2 - workers)
    dcp.load({"model": model.state_dict(), "loader": resumed}, checkpoint_id=tmp_path)
    assert first + ids(resumed) == gold(stream_of(ref), 1)


# Memory.


def half_of_image(batch):
    return {**batch, "image": batch["image"] // 2}


def test_a_part_of_a_batch_may_be_kept(tmp_path):
    """What is kept alone, a row of one field, keeps its memory; all other memory is used again."""
    storage = yogadl.open_storage(tmp_path)
    storage.submit(
        {"id": np.arange(400), "x": np.repeat(np.arange(400), 5000).reshape(400, 5000)}, "set", "1"
    )
    stream = storage.fetch("set", "1").stream()
    rows = [batch["x"][2:3].view(-1)[:7] for batch in adapter.make_dataloader(stream, 40, 2)]
    assert [row.tolist() for row in rows] == [[number] * 7 for number in range(2, 400, 40)]


def mapped_bytes():
    """Return how much memory is mapped here that workers share."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "yogadl-batches" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


@pytest.mark.parametrize("transform", [None, half_of_image], ids=["columns", "transformed"])
@pytest.mark.parametrize("kept", ["label", "mask"])
def test_a_field_that_is_kept_does_not_hold_the_rest_of_its_batch(tmp_path, kept, transform):
    """An evaluation keeps the labels or masks of all batches: that is all that it keeps."""
    storage, count = yogadl.open_storage(tmp_path), 1280
    images = np.repeat(np.arange(count).astype(np.uint8), 40_000).reshape(count, 200, 200)
    records = {"image": images, "label": np.arange(count), "mask": images[:, :50]}
    storage.submit(records, "set", "1")
    batches = adapter.make_dataloader(storage.fetch("set", "1").stream(), 40, 2, transform=transform)
    before = mapped_bytes()
    found = [batch[kept] for batch in batches]
    held = mapped_bytes() - before
    assert torch.equal(torch.cat(found), torch.from_numpy(records[kept]))
    running = 16_000_000  # a few batches are on their way when the last one comes
    assert held < 1.5 * records[kept].nbytes + running < records["image"].nbytes


def test_batches_are_writable_and_share_nothing(ref):
    for workers in (0, 2):
        batches = list(adapter.make_dataloader(stream_of(ref), 8, workers))
        batches[0]["x"].fill_(-1)
        batches[1]["x"][0].mul_(0)
        assert torch.equal(batches[2]["x"][:, 0] / 3, batches[2]["id"].float())
        assert ref.gather([5])["x"].tolist() == [[15, 16, 17]]


def test_tensors_share_memory_with_what_was_gathered(ref):
    batch = next(iter(adapter.make_dataloader(stream_of(ref), 8)))
    array = batch["x"].numpy()
    array[0] = 9
    assert batch["x"][0].tolist() == [9, 9, 9]
    assert not array.flags.owndata


def test_memory_is_used_again(tmp_path):
    """As many descriptors are open after many batches as after a few."""
    storage = yogadl.open_storage(tmp_path)
    storage.submit({"x": np.zeros((400, 5000))}, "set", "1")
    batches = iter(adapter.make_dataloader(storage.fetch("set", "1").stream(), 8, 2, epochs=4))
    maps = []
    for number, _ in enumerate(batches):
        if number % 25 == 24:
            maps.append(Path("/proc/self/maps").read_text().count("yogadl-batches"))
    assert len(maps) == 8
    assert max(maps) <= 12


# Arguments.

OF_WORKERS = "is about worker processes: pass num_workers=1 or more with it"
REFUSED = [
    ({"num_workers": -1}, "^num_workers must be a whole number of at least 0, not -1"),
    ({"num_workers": 1.5}, "^num_workers must be a whole number"),
    ({"pin_memory": "yes"}, "^pin_memory must be True or False"),
    ({"transform": 3}, "^transform must be a function of a batch, not 3"),
    ({"prefetch_factor": 2}, f"^prefetch_factor {OF_WORKERS}"),
    ({"persistent_workers": True}, f"^persistent_workers {OF_WORKERS}"),
    ({"timeout": 3}, f"^timeout {OF_WORKERS}"),
    ({"multiprocessing_context": "spawn"}, f"^multiprocessing_context {OF_WORKERS}"),
    ({"num_workers": 2, "timeout": -1}, "^timeout must be a number of seconds above 0, not -1"),
    (
        {"num_workers": 2, "multiprocessing_context": "thread"},
        "^multiprocessing_context must be one of forkserver, spawn",
    ),
    ({"num_workers": 2, "worker_init_fn": 3}, "^worker_init_fn must be a function"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=str)
def test_options_that_make_no_sense_are_refused(ref, options, words):
    with pytest.raises(ConfigurationError, match=words):
        adapter.make_dataloader(stream_of(ref), 8, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch_factor": None, "persistent_workers": False},
        {"timeout": 0},
        {"timeout": 0, "num_workers": 1},
    ],
    ids=str,
)
def test_options_that_say_nothing_are_taken(ref, options):
    assert ids(adapter.make_dataloader(stream_of(ref), 8, **options)) == gold(stream_of(ref), 0)


@pytest.mark.parametrize(
    ("options", "call", "words"),
    [
        ({"num_workers": 2}, lambda loader: loader.prefetch(2, threads=2), "worker processes"),
        (
            {"num_workers": 1},
            lambda loader: loader.prefetch(2, workers=2),
            "make_dataloader has workers already",
        ),
        ({"transform": dict}, lambda loader: loader.map(dict), "transform="),
    ],
    ids=["threads", "workers", "transform"],
)
def test_stages_that_would_do_what_the_loader_does_are_refused(ref, options, call, words):
    loader = adapter.make_dataloader(stream_of(ref), 4, **options)
    assert "batch 4" in repr(loader)
    with pytest.raises(ConfigurationError, match=words):
        call(loader)


def half(batch):
    return {"half": batch["x"] / 2, "id": batch["id"], "names": tuple(batch["name"]), "pid": os.getpid()}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_runs_on_each_batch_in_the_worker(ref, workers):
    batches = list(adapter.make_dataloader(stream_of(ref), 8, workers, transform=half))
    assert ids(batches) == gold(stream_of(ref), 0)
    assert torch.equal(batches[0]["half"][:, 0], batches[0]["id"] * 1.5)
    assert (batches[0]["pid"] == os.getpid()) is not bool(workers)


def first_of_each(batch):
    return {"id": batch["id"], "first": torch.as_strided(batch["id"], (1,), (0,)), "all": batch["x"].sum()}


def test_a_transform_may_return_tensors_of_one_element_however_they_are_strided(ref):
    batches = list(adapter.make_dataloader(stream_of(ref), 8, 1, transform=first_of_each))
    assert [int(batch["first"]) for batch in batches] == gold(stream_of(ref), 0)[::8]
    assert batches[0]["all"].shape == ()


def test_without_an_accelerator_nothing_is_pinned(ref):
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    assert ids(adapter.make_dataloader(stream_of(ref), 8, pin_memory=True)) == gold(stream_of(ref), 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned_on_request(ref, workers):
    loader = adapter.make_dataloader(stream_of(ref), 8, workers, pin_memory=True)
    batches = list(loader)
    assert all(batch["x"].is_pinned() for batch in batches)
    assert ids(batches) == gold(stream_of(ref), 0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("options", [{}, {"transform": dict}])
def test_prefetching_in_threads_goes_with_tensors(ref, threads, options):
    loader = adapter.make_dataloader(stream_of(ref), 8, **options).prefetch(2, threads=threads)
    assert ids(loader) == gold(stream_of(ref), 0)


def test_a_loader_pickles_with_its_place(ref):
    loader = adapter.make_dataloader(stream_of(ref), 8, 2, persistent_workers=True)
    ids(loader)
    assert ids(pickle.loads(pickle.dumps(loader))) == gold(stream_of(ref), 1)


# Processes.


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_will_do(ref, method):
    workers = 1 if method == "spawn" else 2  # each of those takes seconds to begin
    loader = adapter.make_dataloader(
        stream_of(ref), 8, workers, multiprocessing_context=method, persistent_workers=True
    )
    assert [ids(loader) for _ in range(2)] == [gold(stream_of(ref), epoch) for epoch in range(2)]


def pids(batches):
    return {batch["pid"] for batch in batches}


def test_persistent_workers_stay_from_epoch_to_epoch(ref):
    options = {"transform": half, "persistent_workers": True}
    loader = adapter.make_dataloader(stream_of(ref), 8, 2, **options)
    before = children()
    first = list(loader)
    workers = children() - before
    second = list(loader)
    assert workers <= children() - before  # one that is slow to start may come later
    assert pids(first) | pids(second) <= children() - before
    assert ids(first) + ids(second) == gold(stream_of(ref), 0, 1)


def test_persistent_workers_of_an_iterator_that_was_left_read_the_next_epoch(ref):
    loader = adapter.make_dataloader(stream_of(ref), 8, 2, transform=half, persistent_workers=True)
    before = children()
    batches = iter(loader)
    next(batches)
    workers = children() - before
    assert workers
    batches.close()
    again = list(loader)
    assert ids(again) == gold(stream_of(ref), 1)
    assert workers <= children() - before  # one that is slow to start may come later
    loader.load_state_dict(stream_of(ref).cursor(delivered=40, epoch=5))
    assert ids(loader) == gold(stream_of(ref), 5)[40:]
    assert ids(loader) == gold(stream_of(ref), 6)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_iterators_run_side_by_side(ref, is_persistent):
    loader = adapter.make_dataloader(stream_of(ref), 8, 2, persistent_workers=is_persistent)
    first, second = [], []
    for one, other in zip(loader, loader, strict=True):
        first += ids([one])
        second += ids([other])
    assert (first, second) == (gold(stream_of(ref), 0), gold(stream_of(ref), 1))


def test_workers_end_with_their_iterator(ref):
    before = children()
    batches = iter(adapter.make_dataloader(stream_of(ref), 8, 2))
    next(batches)
    assert children() - before
    del batches
    assert not children() - before
    batches = iter(adapter.make_dataloader(stream_of(ref), 8, 2))
    ids(batches)
    assert not children() - before


DROPPED = """
    import gc, multiprocessing, os, sys
    import numpy as np
    import psutil
    import yogadl
    from yogadl.adapters import torch as adapter

    steps = [word.split() for word in sys.argv[1:]]
    ref = yogadl.from_source({"id": np.arange(400)})
    gc.collect()
    gc.disable()

    def make():
        return adapter.make_dataloader(
            ref.stream(), 8, 2, persistent_workers=True, multiprocessing_context=method
        )

    def workers():
        servers = psutil.Process().children()
        return {worker.pid for server in servers for worker in server.children()}

    def is_there(pid):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def begin():
        count = len(workers()) + 2
        loader = make()
        batches = iter(loader)
        next(batches)
        while len(workers()) < count:  # one may have a batch before the other is there
            pass
        return loader, batches, workers()

    def check_gone(pids):
        assert len(pids) == 2, pids
        assert not any(map(is_there, pids)), pids

    def before_the_first_batch():
        loader = make()
        batches = iter(loader)
        del loader, batches
        assert not workers()

    def in_mid_epoch():
        loader, batches, pids = begin()
        del batches
        assert workers() == pids  # the loader has kept them
        del loader
        check_gone(pids)

    def while_an_iterator_is_held():
        loader, batches, pids = begin()
        del loader
        assert len(list(batches)) == 49
        assert workers() == pids
        del batches
        check_gone(pids)

    def between_epochs():
        loader = make()
        assert len(list(loader)) == len(list(loader)) == 50
        pids = workers()
        del loader
        check_gone(pids)

    def after_an_error_in_the_loop():
        loader = make()
        try:
            for batch in loader:
                raise KeyError
        except KeyError:
            pass
        pids = workers()
        del loader, batch
        check_gone(pids)

    def after_iterating_side_by_side():
        loader = make()
        for _ in zip(loader, loader, strict=True):
            pids = workers()
        assert len(pids) == 4
        assert len(workers()) == 2
        del loader
        assert not any(map(is_there, pids))

    def beside_another_loader():
        first = begin()
        pids = first[2]
        loader, batches, both = begin()
        del first
        check_gone(pids)
        assert workers() == both - pids
        assert len(list(batches)) == 49
        del loader, batches
        check_gone(both - pids)

    def in_a_cycle():
        loader, batches, pids = begin()
        cycle = [loader, batches]
        cycle.append(cycle)
        del loader, batches, cycle
        gc.collect()
        check_gone(pids)

    class Owner(list):
        def __init__(self):
            super().__init__({"id": np.int64(i)} for i in range(40))
            self.loader = adapter.make_dataloader(
                yogadl.from_source(self, fingerprint="own").stream(),
                8,
                2,
                persistent_workers=True,
                multiprocessing_context=method,
                transform=self.transform,
                worker_init_fn=self.initialize,
            )

        def transform(self, batch):
            return batch

        def initialize(self, worker):
            pass

    def in_a_cycle_by_what_the_workers_were_given():
        owner = Owner()
        assert len(list(owner.loader)) == 5
        pids = workers()
        del owner
        gc.collect()
        check_gone(pids)

    def by_a_forked_process():
        held = [*begin()[:2]]
        pids = workers()
        child = os.fork()
        if not child:
            held.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        process = multiprocessing.get_context("fork").Process(target=held.clear)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert workers() == pids
        assert all(map(is_there, pids))
        assert len(list(held[1])) == 49
        held.clear()
        check_gone(pids)

    if __name__ == "__main__":
        for method, name in steps:
            globals()[name]()
            assert not workers(), name
        kept = [begin()]
        method = "fork"
        kept.append(begin())
        print(*kept[1][2])
    """


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_persistent_workers_end_at_once_when_their_loader_is_dropped():
    """Without the garbage collector; and without a word, at the interpreter's end, too."""
    names = re.findall(r"def ((?:before|in|while|between|after|beside|by)_\w+)", DROPPED)
    steps = [*(f"fork {name}" for name in names), "forkserver in_mid_epoch"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", "-c", textwrap.dedent(DROPPED), *steps],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 4
    assert not any(map(is_running, pids))


SLOWLY = """
    import os, time

    class Source(list):
        def __reduce__(self):
            return made, ()

    def made():
        if "made" in os.environ:
            try:
                os.open(os.environ["made"], os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                time.sleep(100)  # as if there were much to import
        return Source([{"id": i} for i in range(40)])
"""


def test_workers_that_still_start_when_the_program_ends_are_no_error(tmp_path):
    (tmp_path / "slowly.py").write_text(textwrap.dedent(SLOWLY))
    code = """
        import os, slowly, sys, yogadl
        from yogadl.adapters import torch as adapter

        ref = yogadl.from_source(slowly.made(), fingerprint="own")
        os.environ["made"] = sys.argv[1]
        batches = iter(adapter.make_dataloader(ref.stream(), 8, 2, multiprocessing_context="spawn"))
        print(next(batches)["id"].tolist())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(tmp_path / "made")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{list(range(8))}\n", "")


def test_a_thread_may_iterate(ref):
    found = []
    thread = threading.Thread(target=lambda: found.extend(ids(adapter.make_dataloader(stream_of(ref), 8, 2))))
    thread.start()
    thread.join()
    assert found == gold(stream_of(ref), 0)


class Failing:
    """Records one of which can't be read, until a file is there."""

    def __init__(self, path, error):
        self.path, self.error = path, error

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 25 and not os.path.exists(self.path):
            raise self.error
        return {"id": np.int64(index)}


class OddError(Exception):
    """One that can't be made from a text alone."""

    def __init__(self, code, what):
        super().__init__(code, what)
        self.code = code


@pytest.mark.parametrize("error", [KeyError("gone"), StorageError("the disk is on fire"), OddError(7, "odd")])
def test_an_error_in_a_worker_is_raised_as_what_it_was_and_nothing_is_lost(tmp_path, error):
    path = tmp_path / "mended"
    path.touch()
    source = yogadl.from_source(Failing(str(path), error), fingerprint="failing")
    path.unlink()
    loader = adapter.make_dataloader(source.stream(), 4, 2)
    batches = iter(loader)
    found = []
    with pytest.raises(type(error)) as caught:
        found.extend(i for batch in batches for i in ids([batch]))
    assert caught.value.args == error.args
    notes = "\n".join(caught.value.__notes__)
    assert "while reading record 25" in notes
    assert re.search("in worker process [01] of make_dataloader", notes)
    assert "__getitem__" in notes
    assert found == list(range(24))
    assert batches.state_dict()["position"] == 24
    path.touch()
    assert found + ids(batches) == list(range(40))


def wait_for(path, batch):
    while not path.exists():
        threading.Event().wait(0.01)
    return batch


def wait_first(path, number):
    wait_for(path, number)


def test_a_worker_init_fn_that_hangs_is_told_as_that_and_it_goes_on(ref, tmp_path):
    init = functools.partial(wait_first, tmp_path / "now")
    batches = iter(adapter.make_dataloader(stream_of(ref), 8, 1, worker_init_fn=init, timeout=1))
    with pytest.raises(TimeoutError, match="worker_init_fn timed out after 1 seconds, in worker process 0"):
        next(batches)
    (tmp_path / "now").touch()
    assert ids(batches) == gold(stream_of(ref), 0)


@pytest.mark.parametrize(("name", "method"), [("transform", "spawn"), ("worker_init_fn", "forkserver")])
def test_a_function_that_cannot_be_sent_to_a_worker_is_named_with_what_to_do(ref, name, method):
    lock = threading.Lock()
    options = {name: lambda given: (given, lock)[0], "multiprocessing_context": method}
    batches = iter(adapter.make_dataloader(stream_of(ref), 8, 2, **options))
    with pytest.raises(ConfigurationError, match=rf"{name}=<function .*<lambda>.* can't be sent .*\"fork\""):
        next(batches)


class Unsendable(list):
    def __reduce__(self):
        raise TypeError("a handle can't be pickled")


def test_a_source_that_cannot_be_sent_to_a_worker_is_said_to_be_that():
    stream = yogadl.from_source(Unsendable([1, 2, 3]), fingerprint="three").stream()
    loader = adapter.make_dataloader(stream, 2, 1, multiprocessing_context="spawn")
    with pytest.raises(ConfigurationError, match=r"the stream's source .* a handle can't be pickled.*submit"):
        next(iter(loader))


def worker_of(batch):
    info = torch.utils.data.get_worker_info()
    return {
        **batch,
        "worker": (info.id, info.num_workers, info.seed, torch.initial_seed()),
        "pid": os.getpid(),
    }


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_knows_its_number_and_seed(ref, method):
    generator = torch.Generator().manual_seed(7)
    loader = adapter.make_dataloader(
        stream_of(ref), 8, 2, transform=worker_of, generator=generator, multiprocessing_context=method
    )
    first = {batch["worker"] for batch in loader}
    second = {batch["worker"] for batch in loader} if method == "fork" else set()  # others take seconds
    assert set() < {(number, count) for number, count, *_ in first} <= {(0, 2), (1, 2)}
    assert bool(second) == (method == "fork")
    assert all(seed == drawn for *_, seed, drawn in first | second)
    assert first.isdisjoint(second)  # other seeds in each epoch, which the generator says
    again = torch.Generator().manual_seed(7)
    base = int(torch.empty((), dtype=torch.int64).random_(generator=again))
    assert all(seed == base + number for number, _, seed, _ in first)


def test_in_a_dataloader_of_pytorchs_own_it_is_one_too():
    dataset = adapter.IterableDataset(failing())
    check_error(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1), 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_replayed_and_says_its_records(workers):
    stream = yogadl.from_source({"id": np.arange(103)}).stream(shuffle=True)
    loader = adapter.make_dataloader(stream, batch_size=16, num_workers=workers, transform=doubled)
    batches = iter(loader)
    seen = [(batches.last, batch["id"].tolist()) for batch in batches]
    assert len(seen) == 7
    for step, (last, ids_of_batch) in enumerate(seen):
        assert (2 * last.indices).tolist() == ids_of_batch
        assert loader.batch_at(step)["id"].tolist() == ids_of_batch


def doubled(batch):
    return {"id": batch["id"] * 2}


def test_functions_of_batches_get_tensors():
    stream = yogadl.from_source({"id": np.arange(10)}).stream()
    loader = adapter.make_dataloader(stream, batch_size=4).map(doubled).prefetch(2)
    assert [batch["id"].tolist() for batch in loader] == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


def test_functions_of_batches_from_workers_are_called_here():
    stream = yogadl.from_source({"id": np.arange(10)}).stream()
    loader = adapter.make_dataloader(stream, batch_size=4, num_workers=1, transform=half_of_id)
    here = os.getpid()
    batches = list(
        loader.map(lambda batch: (batch["id"].tolist(), batch["pid"] != here, os.getpid() == here))
    )
    assert batches == [([0, 0, 1, 1], True, True), ([2, 2, 3, 3], True, True), ([4, 4], True, True)]


def half_of_id(batch):
    return {"id": batch["id"] // 2, "pid": os.getpid()}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("skip_finished_epoch", [False, True])
def test_a_look_moves_no_loader(ref, workers, skip_finished_epoch):
    loader = adapter.make_dataloader(stream_of(ref), 8, workers, skip_finished_epoch=skip_finished_epoch)
    before = loader.state_dict()
    first = next(iter(loader.at(0)))
    assert torch.equal(loader.batch_at(0)["id"], first["id"])
    assert loader.state_dict() == before
    batches = iter(loader)
    assert torch.equal(next(batches)["id"], first["id"])
    next(iter(loader.at(0)))
    loader.batch_at(3)
    assert loader.state_dict() == batches.state_dict() == loader.stream.cursor(8)
    assert next(batches)["id"].tolist() == stream_of(ref).indices(0, 8, 16).tolist()


def odd(record):
    if record["id"] % 10 == 3:
        raise ValueError("a three")
    return {"id": record["id"]}


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_one_stream_count_broken_records_by_themselves(ref, workers):
    stream = stream_of(ref).map(odd, on_error="substitute")
    for _ in range(2):
        loader = adapter.make_dataloader(stream, 8, workers)
        assert loader.rejected() == []
        batches = iter(loader)
        for batch in batches:
            assert batches.last.indices.tolist() == batch["id"].tolist()
        assert loader.stats().rejected == len(loader.rejected()) >= 10


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_broken_records_end_a_loader_for_good(ref, workers):
    enough = stream_of(ref).map(odd, on_error="substitute", max_errors=10)
    loader = adapter.make_dataloader(enough, 8, workers)
    assert [len(list(loader)) for _ in range(3)] == [13] * 3
    stream = stream_of(ref).map(odd, on_error="substitute", max_errors=1)
    ended = adapter.make_dataloader(stream, 8, workers)
    batches = iter(ended)
    with pytest.raises(StageError, match="max_errors=1"):
        list(batches)
    for again in (batches, iter(ended), iter(ended)):
        with pytest.raises(StageError, match="make the loader anew"):
            next(again)
    anew = adapter.make_dataloader(stream, 1, workers)
    anew.load_state_dict(ended.state_dict())
    next(iter(anew))
