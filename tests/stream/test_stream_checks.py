"""What is made wrong can't be made: how rows are cut, and what batches consist of."""

import numpy as np
import pytest
from inside import Batches, Cut
from memory_source import stream_of

from yogadl.errors import ConfigurationError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"batch's n \(batch_size\) must be a whole number of at least 1"),
        ({"size": 2.0}, "batch_size"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"epochs": "2"}, "epochs"),
        ({"drop_remainder": 1}, "drop_remainder must be True or False"),
        ({"across_epochs": None}, "across_epochs"),
        ({"skip_finished_epoch": "yes"}, "skip_finished_epoch"),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Cut(**options)


def test_a_cut_of_numbers_of_numpy_is_the_same():
    cut = Cut(np.int64(3), np.bool_(True), np.int32(2))
    assert cut == Cut(3, True, 2)
    assert [type(value) for value in (cut.size, cut.drop_remainder, cut.epochs)] == [int, bool, int]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate": 3}, "collate must be a function"),
        ({"padding_field": 3}, "name of a field"),
        ({"padding_field": "pair"}, "choose another"),
    ],
)
def test_batches_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Batches(stream_of(5).run, **options)
