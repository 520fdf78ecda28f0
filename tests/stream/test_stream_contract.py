"""The contract of adapters, kept by the core's own batches; and it finds the wrong lines of an adapter."""

from collections import deque

import numpy as np
import pytest

from yogadl.errors import StageError
from yogadl.testing import AdapterContract


class TestBatches(AdapterContract):
    options: dict = {}  # noqa: RUF012  # those of `prefetch`

    def make(self, stream, batch_size, *, epochs=1, **options):
        loader = stream.batch(batch_size, epochs=epochs, **options)
        return loader.prefetch(**self.options) if self.options else loader


class TestBatchesOfThreads(TestBatches):
    options = {"n": 3, "threads": 2}  # noqa: RUF012


class TrayIterator:
    """The iterator of a framework that does not exist: it holds three batches, and delivers one."""

    def __init__(self, batches):
        self.batches, self.held, self.ended = batches, deque(), None
        self.cursor = batches.state_dict()

    def __iter__(self):
        return self

    def __next__(self):
        self.fill()
        if not self.held:
            raise self.ended
        batch, self.cursor = self.held.popleft()
        return batch

    def fill(self):
        while len(self.held) < 3 and self.ended is None:
            try:
                batch = next(self.batches)
            except (StopIteration, StageError) as error:
                self.ended = error
            else:
                self.held.append((self.put(batch), self.batches.state_dict()))

    def put(self, batch):
        return {name: np.array(column) for name, column in batch.items()}


class CountsWhatIsHeld(TrayIterator):
    def __next__(self):
        batch = super().__next__()
        self.cursor = self.batches.state_dict()
        return batch


class FailsAtOnce(TrayIterator):
    def fill(self):
        super().fill()
        if isinstance(self.ended, StageError):
            self.held.clear()


class LosesTheLast(TrayIterator):
    def fill(self):
        super().fill()
        if self.ended is not None and len(self.held) == 1:
            self.held.clear()


class HasOneTray(TrayIterator):
    def put(self, batch):
        tray = vars(self).setdefault("tray", {})
        for name, column in batch.items():
            tray.setdefault((name, len(column)), np.empty_like(column))[...] = column
        return {name: tray[name, len(column)] for name, column in batch.items()}


class Trays:
    def __init__(self, stream, batch_size, epochs, **options):
        self.loader = stream.batch(batch_size, epochs=epochs, **options)
        self.iterator = TrayIterator

    def __iter__(self):
        return self.iterator(iter(self.loader))


class TestTrays(TestBatches):
    iterator = TrayIterator

    def make(self, stream, batch_size, *, epochs=1, **options):
        made = Trays(stream, batch_size, epochs, **options)
        made.iterator = self.iterator
        return made

    def begin(self, loader, state=None):
        if state is not None:
            loader.loader.load_state_dict(state)
        return iter(loader)

    def state(self, loader, iterator, delivered):
        return iterator.cursor


@pytest.mark.parametrize(
    ("iterator", "test", "arguments"),
    [
        (CountsWhatIsHeld, "a_loop_that_stopped_at_any_batch_goes_on_with_the_next", [False]),
        (CountsWhatIsHeld, "a_cursor_goes_on_with_other_ranks_and_batches_here_and_elsewhere", []),
        (FailsAtOnce, "a_function_that_fails_is_an_error_after_the_batches_before_it", []),
        (LosesTheLast, "batches_are_those_of_the_stream", [8, False]),
        (LosesTheLast, "a_shard_is_read_alone", [False]),
        (HasOneTray, "batches_that_are_kept_do_not_change", []),
    ],
)
def test_the_contract_finds_a_wrong_line(iterator, test, arguments):
    contract = TestTrays()
    contract.iterator = iterator
    with pytest.raises(AssertionError):
        getattr(contract, f"test_{test}")(*arguments)
