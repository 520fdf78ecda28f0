"""Fingerprints of views, the names of what is kept for them, and cursors, as they have always been.

A cursor that was saved, and a plan that is kept, are found again by these. The keys of the vectors are
expressions of the names in `Names`; functions are those of the standard library, which have the same
description in each version of Python.
"""

import json
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yogadl

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "views-v1.json").read_text())
LENGTHS = [3, 0, 7, 1, 5, 5, 2, 9, 4, 1, 8, 2]


def record(n):
    return {
        "id": n,
        "label": n % 3,
        "weight": n / 4,
        "kept": n % 5 > 1,
        "tokens": np.arange(LENGTHS[n % 12], dtype=np.int32) + 100 * n,
    }


def names_in(folder):
    """Return what the expressions have: a cache, one that continues it, one of texts, and no cache."""
    storage = yogadl.open_storage(folder)
    ref = storage.submit([record(n) for n in range(12)], "d", "1", build=yogadl.BuildOptions(part_bytes=400))
    texts = storage.submit(["a b", "", "c", "d e f"], "texts", "1")
    grown = storage.append([record(n) for n in range(12, 17)], "d", "2", base_version="1")
    numbers = yogadl.from_source({"id": np.arange(9)}, fingerprint="numbers")
    return {"ref": ref, "texts": texts, "grown": grown, "numbers": numbers, "yogadl": yogadl, "np": np,
            "itemgetter": operator.itemgetter}  # fmt: skip


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    return names_in(tmp_path_factory.mktemp("views"))


def kept_in(folder):
    """Return the names of the plans and selections below a folder."""
    files = [path for suffix in ("plan", "selection") for path in folder.rglob(f"*.{suffix}")]
    return sorted(str(path.relative_to(folder)) for path in files)


def cursor_of(stream, batches):
    """Return the cursor after some batches."""
    iterator = iter(stream.batch(2))
    for _ in range(batches):
        next(iterator)
    return iterator.state_dict()


@pytest.mark.parametrize("code", VECTORS["fingerprints"])
def test_the_fingerprint_of_a_view_stays(names, code):
    assert eval(code, names).fingerprint == VECTORS["fingerprints"][code]


@pytest.mark.parametrize("code", VECTORS["files"])
def test_what_is_kept_for_a_view_stays_under_its_name(tmp_path, code):
    view = eval(code, names_in(tmp_path))
    assert kept_in(tmp_path) == VECTORS["files"][code]
    assert view.fingerprint == VECTORS["fingerprints"][code]


@pytest.mark.parametrize("code", VECTORS["cursors"])
def test_the_cursor_of_a_stream_stays(names, code):
    cursor = cursor_of(eval(code, names), 2)
    assert json.dumps(cursor) == json.dumps(VECTORS["cursors"][code])
