"""The samples of archives that webdataset has written, and of stranger ones, against those that it reads."""

import tarfile

import numpy as np
import pytest
import webdataset
from foreign_files import records_of, tar_member
from inside import WebDataset
from webdataset.tariterators import group_by_keys, tar_file_expander

COUNT = 10_000


def read_by_webdataset(path):
    with path.open("rb") as file:  # which webdataset itself would leave open
        members = tar_file_expander([{"url": str(path), "stream": file}])
        return [
            {name: sample[name] for name in sample if name == "__key__" or not name.startswith("__")}
            for sample in group_by_keys(members)
        ]


def test_many_samples_that_webdataset_has_written(tmp_path):
    rng = np.random.default_rng(6)
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for k in range(COUNT):
            key = f"{k % 7}/{'long' * (k % 50)}{k}"
            writer.write(
                {
                    "__key__": key,
                    "bin": rng.bytes(int(rng.integers(0, 1500))),
                    "cls": k,
                    "a.txt": "ü" * (k % 5),
                }
            )
    records = records_of(WebDataset(), path.read_bytes())
    assert len(records) == COUNT
    assert records == read_by_webdataset(path)


NAMES = (
    "a.x", "a.Y", "b/a.x", "b/a.y.z", "./c.x", "b.d/c.x", "b.d/nodot", "b.d/.x", "bd/.x", ".x", "..x",
    "nodot", "__m__", "__m__/a.x", "__m__a.x", "__", "___", "q/__m__/a.x", "e\nf.x", "g.x\n", "ü.É", "h.x",
    "h.x/", "i.w.x",
)  # fmt: skip


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("seed", range(20))
def test_strange_names_are_grouped_as_webdataset_groups_them(tmp_path, seed, form):
    rng = np.random.default_rng(seed)
    names = rng.permutation(NAMES).tolist()
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=form) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if rng.random() < 0.1 else tarfile.REGTYPE
            tar.addfile(info)
    expected = read_by_webdataset(path)
    fields = tuple(dict.fromkeys(name for sample in expected for name in sample if name != "__key__"))
    records = records_of(WebDataset(missing="empty"), path.read_bytes())
    assert records == [
        {"__key__": s["__key__"]} | {name: s.get(name, b"") for name in fields} for s in expected
    ]


@pytest.mark.parametrize(
    "names", [(b"a.x", b"a.x"), (b"a.x", b"a.y", b"a.X"), (b"a.__key__",), (b"a.__url__",)]
)
def test_both_refuse_a_second_member_of_a_name(tmp_path, names):
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(tar_member(name, b"") for name in names) + bytes(1024))
    with pytest.raises(ValueError, match="duplicate"):
        read_by_webdataset(path)
    with pytest.raises(TypeError, match="two members"):
        records_of(WebDataset(), path.read_bytes())
