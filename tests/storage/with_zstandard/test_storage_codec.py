"""Compressed fields: the records and fingerprint of a raw cache, wherever it is read, copied or grown."""

import hashlib
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from inside import Decoder, set_constants
from trees import assert_equal, assert_same, same_json

import yogadl
from yogadl.errors import ConfigurationError

WORDS = "the of a record field batch epoch shard order cursor mirror bucket part block heap row"
WORDS = WORDS.split()


def text(number, least=0, most=400):
    """Return some text, the same for a number, of which every fifth does not repeat."""
    rng = random.Random(number)
    if number % 5 == 4:
        return rng.randbytes(rng.randrange(least, most)).hex()
    return " ".join(rng.choices(WORDS, k=rng.randrange(least, most)))


def records(first, end):
    """Make records of each kind of field: small, large, fixed, varying, text, bytes, an array of text."""
    return [
        {
            "text": text(n),
            "bytes": text(n + 1).encode(),
            "noise": random.Random(n).randbytes(300),
            "image": np.full((9, 10, 3), n % 7, np.uint8)
            + (np.arange(270).reshape(9, 10, 3) % 3).astype("u1"),
            "tokens": np.random.default_rng(n).integers(0, 30, n % 90).astype(np.int32),
            "boxes": np.ones((n % 4, 4), np.float32) * n,
            "names": np.array([text(n, 0, 5), "\ud800é", ""][: 1 + n % 3], object),
            "label": n,
            "small": np.float32([n, -n]),
        }
        for n in range(first, end)
    ]


def check(ref, expected):
    """Check all records, by ones, in a shuffled batch and in a stream."""
    assert len(ref) == len(expected)
    order = np.random.default_rng(1).permutation(len(expected)).tolist()
    batch = ref.gather(order)
    for place, number in enumerate(order):
        assert_same({name: column[place] for name, column in batch.items()}, expected[number])
    assert_same(ref[order[0]], expected[order[0]])
    seen = [label for batch in ref.stream(shuffle=True).batch(7) for label in batch["label"].tolist()]
    assert sorted(seen) == [record["label"] for record in expected]


CODECS = [
    "zstd",
    "auto",
    yogadl.Zstd(level=9),
    yogadl.Zstd(dictionary=False),
    {"text": "zstd", "image": yogadl.Zstd(level=1), "label": None, "tokens": "auto"},
]


# The same records.


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"build": yogadl.BuildOptions(part_bytes=20_000)}, {"workers": 2}], ids=str
)
@pytest.mark.usefixtures("forked_workers")
def test_records_and_fingerprint_are_those_of_a_raw_cache(storage, codec, options):
    made = records(0, 150)
    storage.submit(made, "d", "raw")
    storage.submit(made, "d", "coded", codec=codec, **options)
    assert storage.info("d", "coded").fingerprint == storage.info("d", "raw").fingerprint
    check(storage.fetch("d", "coded"), made)
    check(storage.fetch("d", "coded", check=True), made)
    storage.verify("d", "coded")
    manifest = json.loads(Path(storage.location, "d/versions/coded.json").read_text())
    names = [field.name for field in storage.info("d", "coded").spec.fields]
    coded = {name for name, codec in zip(names, manifest["codec"], strict=True) if codec == "zstd"}
    assert {"text", "image"} <= coded
    assert not coded & {"label", "small"}
    assert ("bytes" in coded) == (not isinstance(codec, dict))
    assert ("noise" in coded) == (codec not in ("auto", CODECS[-1]))


def test_a_raw_cache_has_the_files_that_it_always_had(storage):
    storage.submit(records(0, 50), "d", "1", codec=None)
    storage.submit(records(0, 50), "d", "2", codec={"text": None})
    one, two = (json.loads(Path(storage.location, f"d/versions/{v}.json").read_text()) for v in "12")
    assert one["table"] == two["table"]
    assert set(one["codec"]) == {"raw"}
    (table,) = Path(storage.location, "d/tables").glob("*.parts")
    assert b"codec" not in table.read_bytes()


@pytest.mark.parametrize("size", [255, 256])
def test_rows_of_256_bytes_are_compressed_and_smaller_ones_are_not(storage, size):
    rows = np.zeros((100, size), np.uint8)
    storage.submit({"x": rows}, "d", "1", codec="zstd")
    sizes = storage.field_sizes("d", "1")["x"]
    assert sizes.codec == ("zstd" if size == 256 else "raw")
    assert sizes.raw_bytes == rows.nbytes
    assert sizes.stored_bytes < rows.nbytes / 4 if size == 256 else sizes.stored_bytes == rows.nbytes
    found = storage.fetch("d", "1").gather(range(100))["x"]
    assert np.array_equal(found, rows)
    assert found.flags.writeable
    assert found.flags.c_contiguous


def test_values_that_do_not_shrink_are_stored_as_they_are(storage):
    values = [random.Random(n).randbytes(n) for n in range(200)] + [b"", b"x" * 1000]
    storage.submit({"x": values}, "d", "1", codec=yogadl.Zstd(dictionary=False))
    sizes = storage.field_sizes("d", "1")["x"]
    assert sizes.raw_bytes == sum(map(len, values))
    assert sizes.stored_bytes < sizes.raw_bytes - 900 + 16 * len(values)
    assert storage.fetch("d", "1").gather(range(len(values)))["x"] == values


def test_a_part_of_auto_is_compressed_if_its_first_values_are_worth_it(storage):
    rng = random.Random(1)
    values = [("noise" if n < 500 else "text", n) for n in range(1000)]
    made = [rng.randbytes(1000) if kind == "noise" else text(n).encode() for kind, n in values]
    storage.submit({"x": made}, "d", "1", codec="auto", build=yogadl.BuildOptions(part_bytes=100_000))
    table = yogadl_table(storage, "1")
    kinds = table.fields[0].codec.tolist()
    assert set(kinds[:4]) == {0}
    assert set(kinds[-4:]) == {1}
    assert storage.fetch("d", "1").gather(range(1000))["x"] == made


def yogadl_table(storage, version, dataset_id="d"):
    return storage.fetch(dataset_id, version)._records.table


# Versions that come from others.


def test_an_appended_version_goes_on_as_the_one_before_was_stored(storage):
    made = records(0, 300)
    storage.submit(made[:100], "d", "1", codec={"text": "zstd"})
    storage.append(made[100:150], "d", "2", base_version="1")
    storage.append(made[150:250], "d", "3", base_version="2", codec=None)
    storage.append(made[250:], "d", "4", base_version="3", codec="zstd")
    storage.submit(made, "d", "whole")
    text_field = [field.name for field in storage.info("d", "1").spec.fields].index("text")
    assert yogadl_table(storage, "4").fields[text_field].codec.tolist() == [1, 1, 0, 0, 1]
    assert storage.info("d", "4").fingerprint == storage.info("d", "whole").fingerprint
    check(storage.fetch("d", "4"), made)
    check(storage.fetch("d", "4", check=True), made)
    storage.verify("d", "4")
    storage.compact("d", "4", "5")
    check(storage.fetch("d", "5"), made)
    assert storage.field_sizes("d", "5")["text"].codec == "zstd"
    assert storage.field_sizes("d", "5")["label"].codec == "raw"


def test_recompressing_changes_no_record(storage):
    made = records(0, 120)
    storage.submit(made, "d", "1", build=yogadl.BuildOptions(metadata={"from": "here"}))
    for new, codec in [("2", "zstd"), ("3", {"bytes": yogadl.Zstd(19)}), ("4", None), ("1", "auto")]:
        storage.recompress("d", "1" if new != "4" else "3", new, codec=codec)
        check(storage.fetch("d", new), made)
        assert storage.fetch("d", new).metadata == {"from": "here"}
        assert storage.info("d", new).fingerprint == storage.info("d", "2").fingerprint
    sizes = storage.field_sizes("d", "4")
    assert {one.codec for one in sizes.values()} == {"raw"}
    assert not yogadl_table(storage, "4").dictionaries


def test_a_shape_that_turns_out_to_vary_leaves_older_parts_readable(storage):
    made = [{"x": np.full((20, 20) if n < 300 else (20, n % 25), n % 9, np.int16)} for n in range(600)]
    storage.submit(made, "d", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=40_000))
    storage.submit(made, "d", "raw", build=yogadl.BuildOptions(part_bytes=40_000))
    assert storage.info("d", "1").fingerprint == storage.info("d", "raw").fingerprint
    for found, expected in zip(storage.fetch("d", "1"), made, strict=True):
        assert_same(found, expected)


# Dictionaries.


def alike(count):
    """Make short values that are alike, for which a dictionary pays."""
    return [{"text": " ".join(["some", *WORDS, str(n), text(n % 40, 5, 30)]), "n": n} for n in range(count)]


def dictionaries(storage, dataset_id="d"):
    return sorted(path.stem for path in Path(storage.location, dataset_id, "parts").glob("*.dict"))


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=str)
def test_all_parts_and_workers_share_one_dictionary(storage, options):
    made = alike(3000)
    storage.submit(made, "d", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=60_000), **options)
    (name,) = dictionaries(storage)
    path = Path(storage.location, f"d/parts/{name}.dict")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == name
    table = yogadl_table(storage, "1")
    assert len(table) > 3
    assert table.dictionaries == (name,)
    field = table.fields[0 if storage.info("d", "1").spec.fields[0].name == "text" else 1]
    assert set(field.dictionary.tolist()) == {0}
    storage.submit(
        made, "e", "1", codec=yogadl.Zstd(dictionary=False), build=yogadl.BuildOptions(part_bytes=60_000)
    )
    with_it, without = (storage.field_sizes(name, "1")["text"].stored_bytes for name in "de")
    assert with_it < 0.8 * without
    check_labels(storage.fetch("d", "1"), made)


def check_labels(ref, made):
    found = ref.gather(range(len(made)))
    assert found["text"] == [record["text"] for record in made]
    assert found["n"].tolist() == list(range(len(made)))


def test_tasks_on_many_machines_share_one_dictionary(storage):
    made = alike(2000)
    build = storage.begin("d", "1", source=made, codec="zstd", partitions=4)
    for partition in (2, 0, 3, 1):
        again = storage.begin("d", "1", source=made, codec="zstd", partitions=4)
        assert again.run == build.run
        again.write(partition)
    build.commit()
    assert len(dictionaries(storage)) == 1
    check_labels(storage.fetch("d", "1"), made)
    assert storage.begin("d", "2", source=made, codec="zstd").run != storage.begin("d", "2", source=made).run


def test_a_killed_build_goes_on_with_its_dictionary(storage):
    made = alike(2000)

    def stop(records, total, size_bytes):
        if records >= 1500:
            raise KeyboardInterrupt

    for codec in ("zstd", yogadl.Zstd(9), None):
        with pytest.raises(KeyboardInterrupt):
            storage.submit(
                made, "d", "1", codec=codec, build=yogadl.BuildOptions(part_bytes=30_000, progress=stop)
            )
        first = dictionaries(storage)
        storage.submit(made, "d", "1", codec=codec, build=yogadl.BuildOptions(part_bytes=30_000))
        assert dictionaries(storage) == first
        table = yogadl_table(storage, "1")
        assert len(table.dictionaries) == (codec is not None)
        assert {bool(field.codec.any()) for field in table.fields} == ({True, False} if codec else {False})
        check_labels(storage.fetch("d", "1"), made)


def test_prune_spares_the_dictionaries_that_are_needed(storage):
    storage.submit(alike(1000), "d", "1", codec="zstd")
    storage.submit(alike(1500)[::-1], "d", "2", codec="zstd")
    assert len(dictionaries(storage)) == 2
    storage.prune(grace_s=0)
    assert len(dictionaries(storage)) == 2
    storage.delete("d", "2")
    storage.prune(grace_s=0)
    assert set(dictionaries(storage)) == set(yogadl_table(storage, "1").dictionaries)
    check_labels(storage.fetch("d", "1"), alike(1000))


# Readers of every kind.


def test_windows_and_rows_of_compressed_documents(storage):
    documents = [np.random.default_rng(n).integers(0, 9, 1 + n * 37 % 500, np.uint16) for n in range(200)]
    storage.submit({"tokens": documents}, "d", "raw")
    storage.submit(
        {"tokens": documents}, "d", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=20_000)
    )
    raw, coded = (storage.fetch("d", version) for version in ("raw", "1"))
    order = np.random.default_rng(0).permutation(len(raw.chunks("tokens", 64)))
    assert_equal(coded.chunks("tokens", 64).gather(order), raw.chunks("tokens", 64).gather(order))
    packed = [ref.packed(512, fields="tokens").at(1).gather(range(9)) for ref in (raw, coded)]
    assert_equal(*packed)


@pytest.mark.parametrize(("kept_bytes", "decoded"), [(2 * 5_000 - 1, 10), (2 * 5_000, 1)])
def test_a_document_of_many_rows_is_decoded_once(storage, monkeypatch, kept_bytes, decoded):
    set_constants(monkeypatch, KEPT_VALUES_BYTES=kept_bytes)
    made = [np.arange(size, dtype=np.uint16) % 9 for size in (5_000, 300)]
    storage.submit({"tokens": made}, "d", "1", codec="zstd")
    frames = []
    decode = Decoder.decode
    monkeypatch.setattr(
        Decoder, "decode", lambda self, *given: frames.extend(given[1].tolist()) or decode(self, *given)
    )
    windows = storage.fetch("d", "1").chunks("tokens", 500)
    found = [windows.gather([number])["tokens"][0] for number in range(10)]
    assert np.array_equal(np.concatenate(found), made[0])
    assert frames == [5_000 * 2] * decoded
    # Also where its pieces come in another order, or with others.
    assert np.array_equal(windows.gather([7, 0, 7])["tokens"], made[0].reshape(-1, 500)[[7, 0, 7]])
    assert np.array_equal(windows.gather([9, 3])["tokens"], made[0].reshape(-1, 500)[[9, 3]])


@pytest.mark.parametrize("field", ["x", "raw"])
def test_a_record_of_several_windows_is_decoded_once_a_batch(storage, monkeypatch, field):
    rows = np.arange(40 * 500, dtype=np.int32).reshape(40, 500) % 7
    made = [{"x": row, "raw": row.tobytes()} for row in rows]
    storage.submit(made, "d", "1", codec="zstd")
    frames = []
    decode = Decoder.decode
    monkeypatch.setattr(
        Decoder, "decode", lambda self, *given: frames.extend(given[1].tolist()) or decode(self, *given)
    )
    windows = storage.fetch("d", "1").windows({field: [-1, 0, 0, 2]}, None)
    windows.fields(field).gather([7, 9, 8, 8, 30])
    assert len(frames) == len({6, 7, 8, 9, 10, 11, 29, 30, 32})


@pytest.mark.parametrize("prefetch", [{"threads": 2}, {"workers": 2}], ids=str)
def test_threads_and_workers_read_the_same(storage, prefetch):
    made = records(0, 200)
    storage.submit(made, "d", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=50_000))
    stream = storage.fetch("d", "1").stream(shuffle=True, shuffle_seed=1)
    batches = list(stream.batch(16).prefetch(3, **prefetch))
    for batch, indices in zip(batches, np.split(stream.indices(), range(16, 200, 16)), strict=True):
        for place, index in enumerate(indices.tolist()):
            assert_same({name: column[place] for name, column in batch.items()}, made[index])


def test_files_that_are_not_mapped_are_read(tmp_path):
    made = records(0, 100)
    storage = yogadl.open_storage(tmp_path / "caches", mapped=False)
    storage.submit(made, "d", "1", codec="zstd", build=yogadl.BuildOptions(part_bytes=30_000))
    check(storage.fetch("d", "1"), made)


def test_pickles_are_compressed(storage):
    made = [{"x": {1, 2, 3}, "y": text(n)} for n in range(60)]
    storage.submit(made, "d", "1", codec="zstd", records=yogadl.RecordOptions(allow_pickle=True))
    assert storage.fetch("d", "1", allow_pickle=True).gather([5])["x"] == [{1, 2, 3}]


# Arguments.


@pytest.mark.parametrize("codec", ["gzip", 3, {"text": "lz4"}, {3: "zstd"}, True, ["zstd"], "same"], ids=str)
def test_other_codecs_and_levels_are_refused(storage, codec):
    with pytest.raises(ConfigurationError, match="codec must be"):
        storage.submit(records(0, 3), "d", "1", codec=codec)
    for level in (0, 23, True, 1.5, "3"):
        with pytest.raises(ConfigurationError, match="level of zstd"):
            yogadl.Zstd(level)


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=str)
def test_a_codec_for_a_field_that_is_not_there_is_refused(storage, options):
    with pytest.raises(ConfigurationError, match="'txt'"):
        storage.submit(records(0, 3), "d", "1", codec={"txt": "zstd"}, **options)
    with pytest.raises(ConfigurationError, match="'txt'"):
        storage.begin("d", "1", source=records(0, 3), codec={"txt": "zstd"})


def test_cacheable_compresses(storage):
    check(storage.cacheable("d", "1", codec="zstd")(lambda: records(0, 40))(), records(0, 40))
    assert storage.field_sizes("d", "1")["text"].codec == "zstd"


def test_a_copy_has_the_dictionaries(storage, tmp_path):
    storage.submit(alike(1000), "d", "1", codec="zstd")
    other = yogadl.open_storage(tmp_path / "other")
    assert yogadl.storage.copy(storage, other, "d", "1")
    assert dictionaries(other) == dictionaries(storage)
    check_labels(other.fetch("d", "1"), alike(1000))
    Path(other.location, f"d/parts/{dictionaries(other)[0]}.dict").unlink()
    assert yogadl.storage.copy(storage, other, "d", "1")
    check_labels(other.fetch("d", "1"), alike(1000))
    exported = yogadl.storage.export(storage.fetch("d", "1").fields("n"), tmp_path / "npy")
    assert np.load(exported.folder / "n.npy").tolist() == list(range(1000))
    shutil.rmtree(storage.location)
    check_labels(other.fetch("d", "1"), alike(1000))


# What the page says.


def test_the_table_of_the_page_is_that_of_the_benchmarks():
    root = Path(__file__).parents[3]
    measured = {}
    for line in (root / "benchmarks/README.md").read_text().splitlines():
        if ": raw bytes against zstd's" in line:
            name, _, ratio, _, _, details = (cell.strip() for cell in line.strip("|").split("|"))
            rates = [one.split()[1:] for one in details.split("; ")]
            measured[name.partition(":")[0]] = [ratio, *(" ".join(rate).removesuffix("/s") for rate in rates)]
    page = (root / "docs/howto/compression.md").read_text().splitlines()
    found = {}
    for line in page[page.index("| field | raw bytes over stored | records/s, raw | zstd |") + 2 :]:
        if not line.startswith("| "):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    assert len(found) >= 9
    assert found == measured


def test_the_sizes_of_fields_of_one_name_are_added_up(storage):
    made = [{"a/b": "a text of some length " * 9, "a": {"b": n}} for n in range(100)]
    storage.submit(made, "d", "1", codec="zstd")
    storage.submit([{"a/b": n, "a": {"b": one["a/b"]}} for n, one in enumerate(made)], "d", "2", codec="zstd")
    for version in "12":
        sizes = storage.field_sizes("d", version)
        assert list(sizes) == ["a/b"]
        assert sizes["a/b"].codec == "zstd"
        assert sizes["a/b"].raw_bytes == 100 * (8 + len(made[0]["a/b"]))


def recorded(storage, version):
    return storage.info("d", version).builder.get("codec")


SLOW = {"level": 9, "dictionary": False}
SLOW_TEXT = {"text": yogadl.Zstd(level=9, dictionary=False), "bytes": "auto", "label": None}


@pytest.mark.parametrize("codec", [SLOW_TEXT, yogadl.Zstd(level=9, dictionary=False)], ids=["fields", "all"])
@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=str)
@pytest.mark.usefixtures("forked_workers")
def test_same_is_the_level_and_the_dictionary_of_the_version_before(storage, codec, options):
    made = alike(1000)
    codec = {"text": codec["text"]} if isinstance(codec, dict) else codec
    storage.submit(made, "d", "1", codec=codec, **options)
    assert recorded(storage, "1") == ({"text": SLOW} if isinstance(codec, dict) else SLOW)
    storage.append(made, "d", "2", base_version="1", **options)
    storage.compact("d", "1", "3", **options)
    storage.recompress("d", "2", "4", codec="same", **options)
    for version in "234":
        assert recorded(storage, version) == {"text": SLOW}
    assert not dictionaries(storage)
    sizes = [storage.field_sizes("d", version)["text"].stored_bytes for version in "13"]
    assert abs(sizes[1] - sizes[0]) < 0.01 * sizes[0]
    storage.compact("d", "1", "5", codec=None)
    assert recorded(storage, "5") is None


def test_tasks_record_the_codec(storage):
    build = storage.begin("d", "1", source=records(0, 30), partitions=2, codec=SLOW_TEXT)
    for partition in range(2):
        build.write(partition)
    build.commit()
    assert recorded(storage, "1") == {"text": SLOW, "bytes": "auto", "label": None}
    storage.append(records(30, 60), "d", "2", base_version="1")
    assert recorded(storage, "2") == {"text": SLOW, "bytes": "auto"}


@pytest.mark.parametrize(
    "written",
    ["gzip", 3, [], {}, {"text": "gzip"}, {"level": 99, "dictionary": True}, {"text": {"level": 9}}],
)
def test_a_codec_that_is_not_known_is_that_of_an_old_version(storage, written):
    storage.submit(records(0, 30), "d", "1", codec={"text": "zstd"})
    path = Path(storage.location, "d/versions/1.json")
    document = json.loads(path.read_text())
    document["builder"]["codec"] = written
    path.write_text(json.dumps(document))
    storage.append(records(30, 60), "d", "2", base_version="1")
    assert recorded(storage, "2") == {"text": "zstd"}
    assert storage.explain("d", "1", "2").notes


def test_fields_may_have_the_names_of_options(storage):
    made = [{"level": text(n, 50), "dictionary": text(n, 50)} for n in range(50)]
    storage.submit(made, "d", "1", codec={"level": yogadl.Zstd(level=9), "dictionary": "zstd"})
    storage.append(made, "d", "2", base_version="1")
    assert recorded(storage, "2") == {"level": {"level": 9, "dictionary": True}, "dictionary": "zstd"}


def test_a_difference_of_codecs_is_a_note(storage):
    made = alike(100)
    storage.submit(made, "d", "1")
    storage.submit(made, "d", "2", codec={"text": yogadl.Zstd(level=9), "n": None})
    storage.recompress("d", "2", "3", codec=yogadl.Zstd(dictionary=False))
    assert "codec: none -> n=none, text=zstd:9" in storage.explain("d", "1", "2").notes
    assert "codec: n=none, text=zstd:9 -> zstd:3 without dictionary" in storage.explain("d", "2", "3").notes
    assert not any("codec" in note for note in storage.explain("d", "3", "3").notes)
    assert "codec: none -> n=none, text=zstd:9" in storage.log("d").versions[1].explanation.notes


LABELLED = [{"text": text(n, 300), "label": n, "box": np.zeros(4)} for n in range(50)]
NOISE = np.random.default_rng(1).integers(0, 256, (50, 300), np.uint8)
SMALL_AND_LARGE = {"small": np.zeros((50, 255), np.uint8), "large": np.zeros((50, 256), np.uint8)}
SHRINKS_NOT = r"\['x'\]: a sample did not shrink to less than 70%"
# Records, a codec, and what is logged of the fields for which it does nothing: once, at which level.
IDLE = {
    "any field": (LABELLED, "zstd", "INFO", r"\['label', 'box'\]: values of one size below 256 bytes"),
    "a named field": (SMALL_AND_LARGE, {"small": "zstd", "large": "zstd"}, "WARNING", r"\['small'\]:"),
    "all fields": ({"x": np.arange(50)}, yogadl.Zstd(level=9), "WARNING", ""),
    "a sample": ({"x": NOISE, "y": np.zeros((50, 300), np.uint8)}, "auto", "INFO", SHRINKS_NOT),
    "no named field": (LABELLED, {"text": "zstd"}, None, ""),
    "no codec": (LABELLED, None, None, ""),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", IDLE)
@pytest.mark.usefixtures("forked_workers")
def test_the_log_names_once_the_fields_for_which_a_codec_does_nothing(storage, caplog, name, workers):
    data, codec, level, says = IDLE[name]
    caplog.set_level("INFO", "yogadl")
    storage.submit(data, "d", "1", codec=codec, workers=workers, build=yogadl.BuildOptions(part_bytes=4096))
    found = [record for record in caplog.records if "does nothing" in record.getMessage()]
    assert [record.levelname for record in found] == ([level] if level else [])
    assert all(re.search(says, record.getMessage()) for record in found)


@pytest.mark.parametrize("codec", ["zstd", "auto", {"chat": "zstd"}], ids=str)
def test_json_values_are_compressed(storage, codec):
    chats = [
        [{"role": "user", "content": text(n)}, {"role": "tool", "n": [n, 0.5, None]}] for n in range(600)
    ]
    raw = storage.submit({"chat": chats}, "d", "raw")
    assert raw.spec.fields[0].leaf == yogadl.Leaf("json")
    made = storage.submit({"chat": chats}, "d", "1", codec=codec)
    again = storage.recompress("d", "raw", "2", codec=codec)
    sizes = [storage.field_sizes("d", version)["chat"].stored_bytes for version in ("raw", "1", "2")]
    assert max(sizes[1:]) < 0.8 * sizes[0]
    for ref in (made, again, storage.recompress("d", "1", "3", codec=None)):
        assert ref.fingerprint == raw.fingerprint
        assert same_json(ref.gather(range(600))["chat"], chats)
    assert storage.append({"chat": chats[:9]}, "d", "4", base_version="1")[608] == {"chat": chats[8]}
