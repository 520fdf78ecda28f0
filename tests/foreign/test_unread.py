"""Files whose bytes are not read through have the same records, in few batches."""

import json

import numpy as np
import pytest
from adopted_files import write_numbered
from foreign_files import mds_of
from inside import adopted

import yogadl


def write(folder, form):
    """Write two files of a format, of 75 records each."""
    if form != "mds":
        write_numbered(folder, form, [75, 75])
        return
    folder.mkdir()
    for number in range(2):
        samples = [[bytes([k]) * (k * 97 % 900), b"%08d" % k] for k in range(75 * number, 75 * number + 75)]
        (folder / f"{number}.mds").write_bytes(mds_of({"a": "bytes", "b": "int"}, samples))


@pytest.mark.parametrize("form", ["webdataset", "tfrecord", "mds", "jsonl"])
@pytest.mark.parametrize(("joined", "batch_bytes"), [(7, 512), (2**16, 2**30)])
def test_records_are_those_of_files_that_are_read(tmp_path, monkeypatch, form, joined, batch_bytes):
    monkeypatch.setattr("yogadl.storage._files.permitted._LOCAL_HEADER_BYTES", 512)
    monkeypatch.setattr("yogadl.storage._files.permitted._UNREAD_BATCH_BYTES", batch_bytes)
    monkeypatch.setattr("yogadl._foreign.file_reader._JOINED_RECORDS", joined)
    write(tmp_path / "raw", form)
    storage = yogadl.open_storage(tmp_path / "store")
    for version, read in (("read", True), ("unread", False)):
        storage.adopt(tmp_path / "raw", "set", version, format=form, files=yogadl.FileOptions(read=read))
    refs = [storage.fetch("set", version) for version in ("read", "unread")]
    assert len(refs[0]) == len(refs[1]) == 150
    for ours, theirs in zip(*refs, strict=True):
        np.testing.assert_equal(ours, theirs)
    order = [list(ref.stream(shuffle=True, shuffle_seed=3).indices(0, 0, 150)) for ref in refs]
    assert order[0] == order[1]


def test_a_file_that_is_not_read_makes_one_block_of_a_field(tmp_path, monkeypatch):
    monkeypatch.setattr("yogadl.storage._files.permitted._LOCAL_HEADER_BYTES", 512)
    write(tmp_path / "raw", "webdataset")
    storage = yogadl.open_storage(tmp_path / "store")
    found = []
    original = adopted.columns_of

    def columns_of(*arguments, **options):
        for columns in original(*arguments, **options):
            found.append(columns)
            yield columns

    monkeypatch.setattr("yogadl.storage._builds.adopted.columns_of", columns_of)
    storage.adopt(tmp_path / "raw", "set", "1", format="webdataset", files=yogadl.FileOptions(read=False))
    assert len(found) == 2


SPEC = {"tokens": yogadl.Leaf("int64", (None,))}


def json_of(line):
    record = json.loads(line)
    return {"tokens": np.array(record["tokens"]), "kind": record["kind"]}


VIEWS = {
    "sampled": lambda ref: ref.sampled(),
    "sampled_by": lambda ref: ref.sampled(by="kind", records=70),
    "packed": lambda ref: ref.packed(16, fields="tokens"),
    "packed_epoch": lambda ref: ref.packed(16, fields="tokens").at(2),
    "bucketed": lambda ref: ref.bucketed("tokens", tokens=40),
    "grouped": lambda ref: ref.grouped(lambda record: len(record["tokens"]), records=4),
    "chunks": lambda ref: ref.chunks("tokens", 8),
    "flat_map": lambda ref: ref.flat_map(lambda record: [{"kind": record["kind"]}] * 2),
    "mapped": lambda ref: ref.map(dict, spec=SPEC).packed(16, fields="tokens").map(dict),
    "selected": lambda ref: ref.select(range(0, 50, 2)).packed(16, fields="tokens").fields("tokens"),
    "mix": lambda ref: yogadl.mix({"a": (ref.sampled(), 0.5), "b": (ref, 0.5)}),
    "mix_of_packed": lambda ref: yogadl.mix({"a": (ref.packed(16, fields="tokens"), 1)}),
}


@pytest.fixture(scope="module")
def unread_and_copies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unread")
    (folder / "raw").mkdir()
    lines = [json.dumps({"tokens": [n] * (n % 9 + 1), "kind": n % 3}) for n in range(60)]
    (folder / "raw" / "a.jsonl").write_text("\n".join(lines) + "\n")
    storage = yogadl.open_storage(folder / "store")
    storage.adopt(folder / "raw", "set", "unread", format="jsonl", files=yogadl.FileOptions(read=False))
    storage.submit(storage.fetch("set", "unread"), "set", "copied")
    other = yogadl.open_storage(folder / "other")
    yogadl.storage.copy(storage, other, "set", "unread", materialize=True)
    return storage.fetch("set", "unread"), storage.fetch("set", "copied"), other.fetch("set", "unread")


@pytest.mark.parametrize("view", VIEWS)
def test_a_cursor_goes_on_with_a_copy_of_the_records(unread_and_copies, view):
    unread, *copies = (ref.map(json_of, spec=SPEC) for ref in unread_and_copies)
    for copied in copies:
        assert copied.fingerprint != unread.fingerprint
        ours, theirs = (VIEWS[view](ref).stream(shuffle=True, shuffle_seed=5) for ref in (unread, copied))
        batches = iter(ours)
        for _ in range(4):
            next(batches)
        cursor = json.loads(json.dumps(batches.state_dict()))
        rest = VIEWS[view](copied).stream(shuffle=True, shuffle_seed=5, cursor=cursor)
        for one, other in zip(batches, rest, strict=True):
            np.testing.assert_equal(one, other)
        theirs.load_state_dict(cursor)
        with pytest.raises(yogadl.errors.CursorError):
            VIEWS[view](copied[:59]).stream(shuffle=True, shuffle_seed=5, cursor=cursor)
