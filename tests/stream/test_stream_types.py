"""What a type checker knows of names, and of records on their way: mypy checks the assertions here."""

from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
import pytest

import yogadl
from yogadl import Loader, RecordStream, StreamIterator


def length(record: Any) -> int:
    return len(str(record))


def half(number: int) -> float:
    return number / 2


def noisy(number: int, rng: np.random.Generator) -> str:
    return f"{number} {rng.integers(9)}"


def total(numbers: list[int]) -> int:
    return sum(numbers)


def test_a_misspelt_name_is_an_error_of_the_type_checker() -> None:
    # `mypy --strict` complains of an ignored error that does not occur.
    with pytest.raises(AttributeError):
        _ = yogadl.open_storge  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = yogadl.storage.CacheStorge  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = yogadl.adapters.toch  # type: ignore[attr-defined]


def test_imports_of_the_modules_are_none_of_their_names() -> None:
    _ = yogadl.Any  # type: ignore[attr-defined]
    _ = yogadl.storage.partial  # type: ignore[attr-defined]


def test_streams_and_loaders_have_names_to_annotate_with() -> None:
    def train(
        ref: yogadl.RecordsRef[int], epochs: int
    ) -> tuple[yogadl.RecordStream[int], yogadl.Loader, yogadl.StreamIterator]:
        stream = ref.stream(shuffle=True)
        loader = stream.batch(2, epochs=epochs).prefetch(1)
        return stream, loader, iter(loader)

    ref = yogadl.from_source(["a", "bb", "ccc"]).map(length)
    stream, loader, iterator = train(ref, 1)
    assert (len(stream), len(loader), len(list(iterator))) == (3, 2, 2)


def test_what_a_function_returns_is_what_comes_out() -> None:
    ref = yogadl.from_source(["a", "bb", "ccc"])
    assert_type(ref, yogadl.RecordsRef[Any])
    lengths = ref.map(length)
    assert_type(lengths, yogadl.RecordsRef[int])
    assert_type(lengths[0], int)
    assert_type(lengths[:2], yogadl.RecordsRef[int])
    stream = lengths.stream()
    assert_type(stream, RecordStream[int])
    assert_type(stream.map(half), RecordStream[float])
    assert_type(stream.random_map(noisy).prefetch(2), RecordStream[str])
    assert_type(iter(stream.map(half)), StreamIterator[float])
    assert list(stream.map(half)) == [0.5, 1.0, 1.5]


def test_batches_are_anything_but_those_of_a_function() -> None:
    stream = yogadl.from_source(["a", "bb", "ccc"]).stream().map(length)
    batches = stream.batch(2)
    assert_type(batches, Loader[Any])
    collated = stream.batch(2, collate=total)
    assert_type(collated, Loader[int])
    assert_type(collated.map(half).prefetch(2), Loader[float])
    assert_type(next(iter(collated.map(half))), float)
    assert list(collated.map(half)) == [1.5, 1.5]


def test_names_without_a_type_mean_any() -> None:
    def takes(ref: yogadl.DataRef, stream: yogadl.Stream) -> Iterator[Any]:
        assert_type(ref, yogadl.DataRef[Any])
        assert_type(stream, yogadl.Stream[Any])
        return iter(stream)

    ref = yogadl.from_source([1, 2])
    assert list(takes(ref, ref.stream())) == [1, 2]


def test_shares_and_mixes_have_the_records_of_their_parents() -> None:
    lengths = yogadl.from_source(["a", "bb", "ccc"]).map(length)
    assert_type(lengths.split(0.5), tuple[yogadl.RecordsRef[int], ...])
    assert_type(yogadl.concat([lengths, lengths]), yogadl.RecordsRef[int])
    mixed = yogadl.mix({"a": (lengths, 1), "b": (lengths, 0.5)})
    assert_type(mixed, yogadl.MixedRef[int])
    assert_type(mixed.map(half), yogadl.MixedRef[float])
    assert_type(mixed.stream(), RecordStream[int])
    assert sorted(mixed.stream()) == [1, 1, 2, 2, 3]
