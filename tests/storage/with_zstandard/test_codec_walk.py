"""A compressed value goes the way that docs/architecture.md says."""

from typing import Any

from inside import Run
from walks import Walk, documented

from yogadl import open_storage


def test_a_compressed_value_goes_the_documented_way(tmp_path, monkeypatch):
    storage = open_storage(tmp_path)
    records = ({"text": b"y" * (number % 500 + 100)} for number in range(3000))
    storage.submit(records, "texts", "1", codec="zstd")
    walk, read = Walk(), Run.read

    def reading(run: Run, *arguments: Any) -> Any:
        walk.is_on = True
        try:
            return read(run, *arguments)
        finally:
            walk.is_on = False

    monkeypatch.setattr(Run, "read", reading)
    batches = iter(storage.fetch("texts", "1").stream(shuffle=True).batch(32))
    next(batches)
    walk.modules.clear()
    with walk.watching():
        next(batches)
    assert set(walk.modules) == set(documented("A compressed value")), str(walk)
