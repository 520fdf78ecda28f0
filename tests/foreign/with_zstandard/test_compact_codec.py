"""Values in foreign files are compressed only as copies."""

import numpy as np
import pytest
from adopted_files import every, plain, write, write_numbered

import yogadl
from yogadl.cli import main
from yogadl.errors import ConfigurationError


def test_values_that_stay_in_foreign_files_are_not_compressed(tmp_path, storage, capsys):
    records = write_numbered(tmp_path / "in", "jsonl", [200, 9])
    storage.adopt(f"{tmp_path}/in", "d", "1")
    with pytest.raises(ConfigurationError, match=r"lie in foreign files and stay there.*materialize=True"):
        storage.recompress("d", "1", "2", codec="zstd")
    words = ["recompress", "d", "1", "2", "--codec", "zstd", "-s", str(tmp_path / "caches")]
    assert main(words) != 0
    assert "--materialize" in capsys.readouterr().err
    assert main([*words, "--materialize"]) == 0
    assert not storage.info("d", "2").is_adopted
    assert every(storage.fetch("d", "2")) == records
    assert [each.codec for each in storage.field_sizes("d", "2").values()] == ["zstd"]
    storage.recompress("d", "1", "3", codec=None)
    assert storage.info("d", "3").is_adopted
    assert len({storage.info("d", name).fingerprint for name in "123"}) == 1


def test_other_fields_are_compressed(tmp_path, storage):
    records = write_numbered(tmp_path / "in", "webdataset", [900, 90])
    storage.adopt(f"{tmp_path}/in/*.tar", "d", "1")
    storage.recompress("d", "1", "2", codec={"__key__": "zstd"})
    assert storage.field_sizes("d", "2")["__key__"].codec == "zstd"
    assert storage.info("d", "2").is_adopted
    assert storage.info("d", "2").fingerprint == storage.info("d", "1").fingerprint
    assert every(storage.fetch("d", "2")) == [plain(record) for record in records]
    storage.verify("d", "2")


def test_a_field_that_is_partly_compressed_and_partly_foreign_stays_so(tmp_path, storage):
    own = [b"text %d " % number * 20 for number in range(3000)]
    storage.submit(own, "d", "0", codec="zstd")
    write(tmp_path / "in/0.jsonl", "jsonl", [b'"%d"' % number for number in range(50)])
    storage.adopt(f"{tmp_path}/in", "d", "1", files=yogadl.FileOptions(base_version="0"))
    storage.compact("d", "1", "2")
    assert storage.info("d", "2").is_adopted
    assert storage.info("d", "2").fingerprint == storage.info("d", "1").fingerprint
    ref = storage.fetch("d", "2")
    assert every(ref) == [*own, *(b'"%d"' % number for number in range(50))]
    numbers = np.random.default_rng(0).permutation(len(ref))[:500].tolist()
    assert every(ref, numbers) == every(storage.fetch("d", "1"), numbers)
    storage.verify("d", "2")
