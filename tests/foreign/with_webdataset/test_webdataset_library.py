"""The samples of archives that webdataset has written, and of stranger ones, against those that it reads."""

import io
import tarfile

import numpy as np
import pytest
import webdataset
from foreign_files import damaged, outcome_of, records_of, tar_member, tar_of
from inside import WebDataset
from webdataset.tariterators import group_by_keys, tar_file_expander

COUNT = 10_000
FORMS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def read_by_webdataset(content):
    members = tar_file_expander([{"url": "a.tar", "stream": io.BytesIO(content)}])
    return [
        {name: sample[name] for name in sample if name == "__key__" or not name.startswith("__")}
        for sample in group_by_keys(members)
    ]


def filled(samples):
    """Return samples with all fields in the order in which they come, those that are missing empty."""
    fields = dict.fromkeys(name for sample in samples for name in sample if name != "__key__")
    return [{"__key__": s["__key__"]} | {name: s.get(name, b"") for name in fields} for s in samples]


def archive_of(members, form):
    return tar_of(members, form).rstrip(b"\0") + bytes(2048)


def test_many_samples_that_webdataset_has_written(tmp_path):
    rng = np.random.default_rng(6)
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for k in range(COUNT):
            key = f"{k % 7}/{'long' * (k % 50)}{k}"
            value = rng.bytes(int(rng.integers(0, 1500)))
            writer.write({"__key__": key, "bin": value, "cls": k, "a.txt": "ü" * (k % 5)})
    records = records_of(WebDataset(), path.read_bytes())
    assert len(records) == COUNT
    assert records == read_by_webdataset(path.read_bytes())


NAMES = (
    "a.x", "a.Y", "b/a.x", "b/a.y.z", "./c.x", "b.d/c.x", "b.d/nodot", "b.d/.x", "bd/.x", ".x", "..x",
    "nodot", "__m__", "__m__/a.x", "__m__a.x", "__", "___", "q/__m__/a.x", "e\nf.x", "g.x\n", "ü.É", "h.x",
    "h.x/", "i.w.x",
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(20))
def test_strange_names_are_grouped_as_webdataset_groups_them(seed, form):
    names = np.random.default_rng(seed).permutation(NAMES).tolist()
    kinds = [tarfile.DIRTYPE if k % 10 == seed % 10 else tarfile.REGTYPE for k in range(len(names))]
    content = archive_of([(name, b"", kind) for name, kind in zip(names, kinds, strict=True)], form)
    assert records_of(WebDataset(missing="empty"), content) == filled(read_by_webdataset(content))


def shuffled(content, count):
    """Yield an archive with blocks exchanged, left out and doubled, so that the checksums hold."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        blocks = [content[begin : begin + 512] for begin in range(0, len(content), 512)]
        first, second = rng.integers(len(blocks), size=2)
        way = rng.integers(3)
        if way == 0:
            blocks[first], blocks[second] = blocks[second], blocks[first]
        elif way == 1:
            del blocks[first]
        else:
            blocks.insert(second, blocks[first])
        yield b"".join(blocks)


@pytest.mark.parametrize("form", FORMS)
def test_damaged_archives_are_read_as_webdataset_reads_them_or_refused(form):
    members = [
        (f"{'d' * 120 * (k % 2)}/{k}.{extension}", bytes([k]) * k * 90, tarfile.REGTYPE)
        for k in range(5)
        for extension in ("a", "b")
    ]
    content = archive_of(members, form)
    compared = 0
    for changed in [*damaged(content, 150, seed=11), *shuffled(content, 300)]:
        records = outcome_of(WebDataset(missing="empty"), changed)
        if records is not None:
            assert records == filled(read_by_webdataset(changed))
            compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    "names", [(b"a.x", b"a.x"), (b"a.x", b"a.y", b"a.X"), (b"a.__key__",), (b"a.__url__",)]
)
def test_both_refuse_a_second_member_of_a_name(names):
    content = b"".join(tar_member(name, b"") for name in names) + bytes(1024)
    with pytest.raises(ValueError, match="duplicate"):
        read_by_webdataset(content)
    with pytest.raises(TypeError, match="two members"):
        records_of(WebDataset(), content)
