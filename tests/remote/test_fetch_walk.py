"""A fetch from a bucket runs code of few files before the first byte of a part arrives."""

import sys
import threading
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import urllib3
from places import Place

import yogadl

ROOT = Path(yogadl.__file__).parent
# Measured; a new layer in between shows here.
MOST_FILES = 31


class Walk:
    """The files of yogadl whose functions run in any thread, in the order of their first calls."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.manifests = 0  # parsed
        self.is_over = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        self.manifests += event == "call" and code.co_qualname == "read_manifest"
        if event == "call" and not self.is_over and code.co_filename.startswith(str(ROOT)):
            self.files.setdefault(str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname)

    def end_with_the_first_byte_of_a_part(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = urllib3.HTTPResponse.read

        def noticing(response: urllib3.HTTPResponse, *arguments: object, **options: object) -> bytes:
            content = read(response, *arguments, **options)  # type: ignore[arg-type]
            self.is_over = self.is_over or (
                "/parts/" in str(response.geturl()).replace("%2F", "/") and bool(content)
            )
            return content

        monkeypatch.setattr(urllib3.HTTPResponse, "read", noticing)


def test_the_walk_of_a_fetch_goes_through_few_files(
    any_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str) -> yogadl.Storage:
        return yogadl.open_storage(any_place.url, **any_place.options, mirror=tmp_path / name)

    for dataset_id in ("first", "second"):
        opened("writer").submit({"x": np.arange(10_000)}, dataset_id, "1")
    storage = opened("reader")
    storage.fetch("first", "1").gather([0])  # imports, and what is made once a process
    walk = Walk()
    walk.end_with_the_first_byte_of_a_part(monkeypatch)
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        storage.fetch("second", "1")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    shown = "\n".join(f"{file}: {function}" for file, function in walk.files.items())
    print(f"{len(walk.files)} files\n{shown}")
    assert walk.is_over
    assert walk.manifests == 1
    assert len(walk.files) <= MOST_FILES, shown
