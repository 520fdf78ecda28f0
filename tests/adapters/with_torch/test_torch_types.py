"""What type checkers know of the batches of a DataLoader: mypy and pyright check the assertions."""

from typing import Any, TypedDict, assert_type

import yogadl
from yogadl import Loader
from yogadl.adapters.torch import make_dataloader


class Batch(TypedDict):
    x: Any  # a tensor: torch is not installed where types are checked
    count: int


def counted(batch: Any) -> Batch:
    return {"x": batch["x"], "count": len(batch["x"])}


def test_batches_are_what_the_transform_returns() -> None:
    stream = yogadl.from_source({"x": [1, 2, 3]}).stream()
    loader = make_dataloader(stream, 2, transform=counted)
    assert_type(loader, Loader[Batch])
    assert_type(next(iter(loader))["count"], int)
    assert [batch["count"] for batch in loader] == [2, 1]


def test_batches_may_be_given_a_type() -> None:
    stream = yogadl.from_source({"x": [1, 2, 3]}).stream()
    assert_type(make_dataloader(stream, 2), Loader[Any])
    loader: Loader[Batch] = make_dataloader(stream, 2)
    assert_type(next(iter(loader)), Batch)
