"""An interrupted build goes on with what is sealed only if the same code and values would have made it."""

import importlib.util
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import yogadl

RECORDS = 400
PART_BYTES = 20_000  # some fifty records
# The first build is stopped here.
STOPPED_AT = 300
MIDDLE = 20  # of the first part, and none of those that are compared


def stop(records, total, size_bytes):
    if records >= STOPPED_AT:
        raise KeyboardInterrupt


def interrupted(storage, build=None, **options):
    """Run a build that is interrupted: by a function, or of the data in the options."""
    with pytest.raises(KeyboardInterrupt):
        build(stop) if build else submit(storage, progress=stop, **options)
    assert len(list(Path(storage.location).glob("d/builds/*/one/*.json"))) >= 2  # that many parts are sealed


def submit(storage, data, part_bytes=PART_BYTES, progress=None):
    storage.submit(data, "d", "1", build=yogadl.BuildOptions(part_bytes=part_bytes, progress=progress))


def labels_of(storage):
    storage.verify("d", "1")
    ref = storage.fetch("d", "1")
    return ref.gather(range(len(ref)))["label"].tolist()


# What users have in a file of their own, which they mend between two builds. Whatever they mend, it shows in
# one record alone, which is not among those that are compared.
CODE = """
import numpy as np

SCALE = 1
NAMES = {"cat": 0, "dog": 1}
READ = []


class Settings:
    def __init__(self, scale):
        self.scale = scale


def label_of(i):
    return i % 9


class Images:
    def __init__(self, settings, transform=None):
        self.settings = settings
        self.transform = transform or (lambda label: label)
        self.labels = list(range(200_000))

    def __len__(self):
        return 400

    def __getitem__(self, i):
        READ.append(i)
        label = i
        if i == 20:
            label = self.transform(label_of(i)) * SCALE * self.settings.scale + NAMES["dog"] + self.labels[i]
            label += self.shift() * Known.settings.scale
        return {"image": np.zeros(400, np.uint8), "label": label}


Images.shift = lambda self: 5


class Known:
    settings = Settings(1)


def images(scale=1):
    return Images(Settings(scale))
"""
CHANGES = {
    "the label function": ("i % 9", "(i + 1) % 9"),
    "a constant": ("SCALE = 1", "SCALE = 2"),
    "a value in a dict": ('"dog": 1', '"dog": 7'),
    "a method": ("label = self", "label = 1 + self"),
    "an object's attribute": ("self.scale = scale", "self.scale = scale + 1"),
    "a lambda that an object holds": ("lambda label: label", "lambda label: -label"),
    "a method that a class was given later": ("lambda self: 5", "lambda self: 6"),
    "an object that a class holds": ("settings = Settings(1)", "settings = Settings(2)"),
    "a value amid a long list": ("list(range(200_000))", "[*range(20), -1, *range(21, 200_000)]"),
}


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Import a text as the module `work`, as another process would that runs it."""
    folders = iter(range(100))

    def load(code):
        folder = tmp_path / f"code{next(folders)}"
        folder.mkdir()
        path = folder / "work.py"
        path.write_text(code)
        spec = importlib.util.spec_from_file_location("work", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "work", module)
        spec.loader.exec_module(module)
        return module

    return load


def build_by_function(storage, work, progress, **arguments):
    storage.cacheable("d", "1", build=yogadl.BuildOptions(part_bytes=PART_BYTES, progress=progress))(
        work.images
    )(**arguments)


def build_by_object(storage, work, progress, **arguments):
    submit(storage, work.images(**arguments), progress=progress)


BUILDS = pytest.mark.parametrize("build", [build_by_function, build_by_object])


@BUILDS
@pytest.mark.parametrize("change", CHANGES)
def test_after_ctrl_c_and_a_change_of_the_code_no_record_is_the_old_ones(storage, load, build, change):
    work = load(CODE)
    interrupted(storage, lambda progress: build(storage, work, progress))
    before, after = CHANGES[change]
    assert CODE.count(before) == 1
    work = load(CODE.replace(before, after))
    build(storage, work, None)
    new = work.images()
    assert labels_of(storage) == [new[i]["label"] for i in range(RECORDS)]


@BUILDS
def test_after_ctrl_c_and_with_another_argument_no_record_is_the_old_ones(storage, load, build):
    interrupted(storage, lambda progress: build(storage, load(CODE), progress))
    work = load(CODE)
    build(storage, work, None, scale=3)
    new = work.images(scale=3)
    assert labels_of(storage) == [new[i]["label"] for i in range(RECORDS)]


@BUILDS
def test_after_ctrl_c_the_same_code_goes_on_where_it_was(storage, load, build):
    interrupted(storage, lambda progress: build(storage, load(CODE), progress))
    work = load("# a comment changes nothing\n" + CODE)
    build(storage, work, None)
    assert len(set(work.READ)) < RECORDS - 20, "what is sealed was not read again"
    images = work.images()
    assert labels_of(storage) == [images[i]["label"] for i in range(RECORDS)]


class Connected:
    """A source that holds what has no content to describe."""

    def __init__(self, labels=range(RECORDS)):
        self.lock = threading.Lock()
        self.read, self.labels = [], labels

    def __reduce__(self):
        raise ZeroDivisionError("no pickle of mine")

    def __len__(self):
        return RECORDS

    def __getitem__(self, i):
        self.read.append(i)
        return {"image": np.zeros(400, np.uint8), "label": self.labels[i]}


def test_a_source_that_can_not_be_described_is_gone_on_with_by_its_class(storage):
    interrupted(storage, data=Connected())
    source = Connected()
    submit(storage, source)
    assert len(set(source.read)) < RECORDS - 20
    assert labels_of(storage) == list(range(RECORDS))


@pytest.mark.parametrize("part_bytes", [28_000, 56_000])  # of the fewest records with a sample at both ends
def test_after_another_first_record_nothing_of_the_old_ones_is_left(storage, part_bytes):
    interrupted(storage, data=Connected(), part_bytes=part_bytes)
    labels = [-1, *range(1, RECORDS)]
    submit(storage, Connected(labels), part_bytes)
    assert labels_of(storage) == labels


def columns(labels):
    return {"image": np.zeros((RECORDS, 400), np.uint8), "label": np.array(labels)}


def records(labels):
    return [{"image": np.zeros(400, np.uint8), "label": label} for label in labels]


SAME = list(range(RECORDS))
MENDED = [*range(MIDDLE), -1, *range(MIDDLE + 1, RECORDS)]


@pytest.mark.parametrize("make", [columns, records])
@pytest.mark.parametrize("labels", [SAME, MENDED])
def test_after_ctrl_c_data_in_memory_go_on_if_no_label_was_mended(storage, make, labels, caplog):
    interrupted(storage, data=make(SAME))
    with caplog.at_level("INFO", "yogadl"):
        submit(storage, make(labels))
    assert ("continuing at record" in caplog.text) == (labels == SAME)
    assert labels_of(storage) == labels


def test_a_mapped_file_too_large_to_be_hashed_counts_by_its_size_and_time(storage, tmp_path):
    def mapped(mode):
        return np.memmap(tmp_path / "rows", np.uint8, mode, shape=(RECORDS, 180_000))

    class Mapped:
        def __init__(self):
            self.rows = mapped("r")

        def __len__(self):
            return RECORDS

        def __getitem__(self, i):
            return {"image": np.zeros(400, np.uint8), "label": int(self.rows[i, 0])}

    mapped("w+").flush()
    interrupted(storage, data=Mapped())
    rows = mapped("r+")
    rows[MIDDLE, 0] = 1
    rows.flush()
    submit(storage, Mapped())
    assert labels_of(storage) == [int(i == MIDDLE) for i in range(RECORDS)]


def test_other_records_chosen_of_a_cache_are_not_mixed_with_those_chosen_before(storage):
    ref = storage.submit(columns(SAME), "other", "1")
    interrupted(storage, data=ref.select(SAME))
    mended = [*range(MIDDLE), 0, *range(MIDDLE + 1, RECORDS)]
    submit(storage, ref.select(mended))
    assert labels_of(storage) == mended
