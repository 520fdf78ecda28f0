"""TensorPack's DataFlow as a source: with the package itself, and objects of the same protocol."""

import numpy as np
import pytest

import yogadl
from yogadl.errors import UnsupportedDataError


class Flow:
    """The protocol of a DataFlow: `reset_state` once, then it may be iterated; it may not know its length."""

    def __init__(self, datapoints):
        self.datapoints = datapoints
        self.resets = 0

    def reset_state(self):
        self.resets += 1

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        assert self.resets, "reset_state comes first"
        yield from self.datapoints


def test_the_state_is_reset_once_before_the_datapoints_are_read(cached):
    flow = Flow([[np.full(2, i), i] for i in range(7)])
    ref = cached(flow)
    assert flow.resets == 1
    assert [(x.tolist(), int(y)) for x, y in ref] == [([i, i], i) for i in range(7)]


def test_a_length_that_is_an_estimate_is_not_believed(cached):
    class Estimating(Flow):
        def __len__(self):
            return 100

    assert len(cached(Estimating([{"x": i} for i in range(7)]))) == 7


def test_a_flow_without_datapoints_is_refused(cached):
    with pytest.raises(UnsupportedDataError, match="no records"):
        cached(Flow([]))


def test_a_flow_has_no_random_access():
    class Listed(Flow):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return self.datapoints[index]

    with pytest.raises(UnsupportedDataError, match=r"storage\.submit"):
        yogadl.from_source(Listed([1]))


def test_a_pipeline_of_tensorpack_is_read_as_it_delivers(cached):
    dataflow = pytest.importorskip("tensorpack.dataflow")

    class Images(dataflow.RNGDataFlow):
        def __len__(self):
            return 20

        def __iter__(self):
            for label in range(20):
                yield [self.rng.randint(0, 255, (4, 4)).astype(np.uint8), label]  # rng: made by reset_state

    even = dataflow.MapData(Images(), lambda datapoint: datapoint if datapoint[1] % 2 == 0 else None)
    assert len(even) == 20  # an estimate
    ref = cached(even)
    assert [int(label) for _, label in ref] == list(range(0, 20, 2))
    assert {(image.shape, image.dtype.name) for image, _ in ref} == {((4, 4), "uint8")}


def test_datapoints_of_tensorpack_in_dicts_and_from_lists(cached):
    dataflow = pytest.importorskip("tensorpack.dataflow")
    flow = dataflow.DataFromList([{"x": i, "text": "a" * i} for i in range(5)], shuffle=False)
    ref = cached(dataflow.ConcatData([flow, flow]))
    assert [record["text"] for record in ref] == ["a" * i for i in range(5)] * 2
