"""Hundreds of parts under a small limit on open files."""

import resource
from pathlib import Path

import numpy as np
from processes import in_child

import yogadl

OPEN_FILES = 256
PARTS = 600
RECORDS = 3 * PARTS


def build(root: Path) -> None:
    storage = yogadl.open_storage(root)
    texts = ["x" * (i % 50) for i in range(RECORDS)]
    storage.submit(
        {"i": np.arange(RECORDS), "text": texts}, "data", "1", build=yogadl.BuildOptions(part_bytes=110)
    )
    assert storage.info("data", "1").parts >= PARTS


def read_with_few_files(root: Path) -> int:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    storage = yogadl.open_storage(root)
    ref = storage.fetch("data", "1")
    loader = ref.stream(shuffle=True).batch(64).prefetch(2)
    for _ in range(2):
        found = []
        for batch in loader:
            found += batch["i"].tolist()
            assert [len(text) for text in batch["text"]] == [i % 50 for i in batch["i"].tolist()]
        assert sorted(found) == list(range(RECORDS))
    storage.verify("data", "1")
    return storage.info("data", "1").parts


def test_more_parts_than_files_may_be_open_read_shuffled(tmp_path: Path) -> None:
    build(tmp_path)
    assert in_child(read_with_few_files, tmp_path) >= PARTS
