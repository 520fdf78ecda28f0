"""What type checkers know of names, and of records on their way: mypy and pyright check the assertions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

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


def test_packed_rows_have_streams_with_batches() -> None:
    chats = yogadl.from_source([{"tokens": np.arange(2)}]).packed(4, fields="tokens")
    assert_type(chats.stream().map(length).batch(1, collate=total), Loader[int])


class Image(TypedDict):
    pixels: NDArray[np.uint8]
    label: int


class Images(TypedDict):
    pixels: NDArray[np.uint8]
    label: NDArray[np.int64]


@dataclass
class Text:
    text: str


def image(record: Any) -> Image:
    return {"pixels": np.full(2, record, np.uint8), "label": int(record)}


def brighter(record: Image, rng: np.random.Generator) -> Image:
    return {**record, "pixels": record["pixels"] + rng.integers(9, dtype=np.uint8)}


def stacked(records: list[Image]) -> Images:
    pixels, labels = (
        np.stack([record["pixels"] for record in records]),
        np.array([r["label"] for r in records]),
    )
    return {"pixels": pixels, "label": labels}


def caption(record: Image) -> Text:
    return Text(f"number {record['label']}")


def texts(records: list[Text]) -> list[str]:
    return [record.text for record in records]


def test_a_typed_dict_is_known_from_the_source_to_the_batch() -> None:
    ref: yogadl.RecordsRef[Image] = yogadl.from_source([3, 4, 5]).map(image)
    assert_type(ref.split(0.5)[0][0]["pixels"], NDArray[np.uint8])
    stream = ref.stream().random_map(brighter)
    assert_type(next(iter(stream)), Image)
    assert_type(stream.batch(2, collate=stacked), Loader[Images])
    batches: Loader[Images] = stream.batch(2)  # named by the reader: no type can be computed from `Image`
    assert_type(batches.prefetch(1).batch_at(1), Images)
    assert [batch["label"].tolist() for batch in batches] == [[3, 4], [5]]


def test_a_dataclass_is_known_and_delivered_too() -> None:
    captions = yogadl.from_source([3, 4, 5]).stream().map(image).map(caption)
    assert_type(next(iter(captions)), Text)
    loader = captions.batch(2, collate=texts)
    assert_type(loader, Loader[list[str]])
    assert list(loader) == [["number 3", "number 4"], ["number 5"]]
    assert next(iter(captions)) == Text("number 3")


def test_a_storage_of_a_user_may_return_nothing_as_in_0_1_4() -> None:
    class Old(yogadl.Storage):
        def submit(self, data: Any, dataset_id: str, dataset_version: str) -> None: ...

        def fetch(self, dataset_id: str, dataset_version: str) -> yogadl.DataRef:
            return yogadl.from_source([1])

        def cacheable(
            self, dataset_id: str, dataset_version: str
        ) -> Callable[[Callable[..., Any]], Callable[..., yogadl.DataRef]]:
            return lambda function: yogadl.from_source

    def submit(storage: yogadl.Storage) -> None:
        assert_type(storage.submit([1], "d", "1"), yogadl.DataRef | None)

    submit(Old())


def test_what_builds_a_version_returns_a_reference(tmp_path: Path) -> None:
    storage = yogadl.open_storage(tmp_path)
    assert_type(storage.submit([1], "d", "1"), yogadl.RecordsRef)
    assert_type(storage.cached([1], "d"), yogadl.RecordsRef)
