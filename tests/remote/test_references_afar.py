"""What builds a version in a bucket returns the reference to it without a request more; cached builds once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import Place
from processes import Process
from store_proxy import StoreProxy

import yogadl
from yogadl.storage import CacheStorage

ROWS = 1_009


@pytest.fixture(params=["mirror", "ranges"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "mirror" if request.param == "mirror" else None


def opened(place: Place, mirror: Path | None) -> CacheStorage:
    return yogadl.open_storage(place.url, **place.options, mirror=mirror)


def lines(folder: Path, name: str, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(f"{number}\n" for number in numbers))


def test_a_reference_costs_no_request(
    broken: tuple[Place, StoreProxy], mirror: Path | None, tmp_path: Path
) -> None:
    """It makes as many as the build alone, which `tag` says the end of; what it says is from the manifest."""
    place, proxy = broken
    storage = opened(place, mirror)
    builds: list[Callable[[], yogadl.RecordsRef]] = [
        lambda: storage.submit({"x": np.arange(ROWS)}, "d", "1", metadata={"by": "me"}),
        lambda: storage.append({"x": np.arange(7)}, "d", "2", base_version="1"),
        lambda: storage.compact("d", "3", base_version="2"),
        lambda: storage.recompress("d", "3", "4", codec=None),
    ]
    for number, build in enumerate(builds, 1):
        proxy.requests.clear()
        ref = build()
        made = list(proxy.requests)
        said = ref.fingerprint, len(ref), ref.spec, ref.metadata, ref.lineage, repr(ref)
        assert proxy.requests == made
        writes = [request.name for request in made if request.is_write]
        manifest = next(n for n, name in enumerate(writes) if name.endswith(f"versions/{number}.json"))
        reads_after = [
            request for request in made[made.index(_write_of(made, writes[manifest])) :]
            if request.name.endswith((".json", ".table", ".mdb")) and "versions/" in request.name
            and not request.is_write
        ]  # fmt: skip
        assert reads_after == []
        fetched = storage.fetch("d", f"{number}")
        found = fetched.fingerprint, len(fetched), fetched.spec, fetched.metadata, fetched.lineage
        assert said == (*found, repr(fetched))
        assert type(ref) is type(fetched)
        assert np.array_equal(ref.gather([6, 0])["x"], fetched.gather([6, 0])["x"])


def _write_of(requests: list[Any], name: str) -> Any:
    return next(request for request in requests if request.is_write and request.name == name)
