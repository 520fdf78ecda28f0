"""Read files of other libraries by their formats, as a storage does, and check that all lies inside them."""

import numpy as np
import pytest
from inside import FileReader, ForeignFile, Places

from yogadl.errors import UnsupportedDataError

WINDOWS = [64, 512, 2**22]


def reader_of(content, *, window_bytes=2**22, name="data", siblings=()):
    """Return the reader of a file of this content, which has `siblings`, a dict of names and contents."""

    def fetch(position, length):
        assert 0 <= position <= position + length <= len(content)
        return content[position : position + length]

    def sibling(other):
        if other not in siblings:
            return None
        return reader_of(siblings[other], window_bytes=window_bytes, name=other)

    file = ForeignFile(f"/folder/{name}", len(content), "1")
    return FileReader(file, fetch, window_bytes=window_bytes, sibling=sibling)


def records_of(kind, content, *, kind_is_known=False, **options):
    """Return the format, which this file decides unless it is known, and the records of the file."""
    reader = reader_of(content, **options)
    if not kind_is_known:
        kind = kind.of_first_file(reader)
    fields = kind.spec.fields
    records = []
    for batch in kind.batches(reader):
        columns = [_values(content, field.leaf, column) for field, column in zip(fields, batch, strict=True)]
        assert len({len(column) for column in columns}) == 1
        assert len(columns[0])
        records += zip(*columns, strict=True)
    return kind, list(map(kind.spec.assemble, records))


def _values(content, leaf, column):
    if not isinstance(column, Places):
        if leaf.is_fixed:
            assert (column.dtype, column.shape[1:]) == (leaf.numpy_dtype, leaf.shape)
        return list(column)
    values = []
    assert column.positions.dtype == column.lengths.dtype == np.int64
    assert (np.diff(column.positions) >= 0).all()
    for k, (position, length) in enumerate(
        zip(column.positions.tolist(), column.lengths.tolist(), strict=True)
    ):
        assert 0 <= position <= position + length <= len(content)
        value = content[position : position + length]
        if leaf.is_numeric:
            rank, *sizes = column.shapes[k].tolist()
            assert leaf.shape is None or rank == len(leaf.shape)
            value = np.frombuffer(value, leaf.numpy_dtype).reshape(sizes[:rank])
        elif leaf.dtype == "str":
            value = value.decode(errors="replace")
        values.append(value)
    return values


def refusal(kind, content, **options):
    """Return the text of the error with which a file is refused."""
    with pytest.raises(UnsupportedDataError) as caught:
        records_of(kind, content, **options)
    return str(caught.value)


def fuzz(kind, content, *, name="data", siblings=(), rounds=1500, seed=7):
    """Damage a file, or one of its siblings: it is refused, or its records lie inside the file."""
    kind = records_of(kind, content, name=name, siblings=siblings)[0]
    random = np.random.default_rng(seed)
    outcomes = set()
    for _ in range(rounds):
        files = {"": content, **dict(siblings)}
        chosen = list(files)[random.integers(len(files))]
        damaged = bytearray(files[chosen])
        for _ in range(random.integers(1, 4)):
            _damage(damaged, random)
        files[chosen] = bytes(damaged)
        for found in (kind, type(kind)()):
            try:
                records_of(
                    found,
                    files[""],
                    name=name,
                    siblings={key: value for key, value in files.items() if key},
                    kind_is_known=found is kind,
                    window_bytes=int(random.choice(WINDOWS)),
                )
                outcomes.add("read")
            except UnsupportedDataError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def _damage(content, random):
    if not content:
        return
    # Most formats have their numbers in front.
    end = len(content) if random.random() < 0.5 else min(len(content), 256)
    place = int(random.integers(end))
    how = random.integers(4)
    if how == 0:
        content[place] = int(random.integers(256))
    elif how == 1:
        content[place : place + 4] = [b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\1\0\0\0"][
            random.integers(4)
        ]
    elif how == 2:
        del content[place:]
    else:
        content[place] ^= 1 << int(random.integers(8))
