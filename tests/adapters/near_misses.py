"""What users hand to an adapter in place of a stream, or ask of it that the stream says, and the answers."""

import itertools
import re

import numpy as np
import pytest

import yogadl
from yogadl.errors import CacheFormatError, ConfigurationError
from yogadl.testing import AdapterContract

REF = yogadl.from_source({"x": np.arange(10, dtype=np.float32), "y": np.arange(10, dtype=np.int32)})

NO_STREAMS = [
    (REF, "pass a stream of it, such as ref.stream(shuffle=True)"),
    (REF[2:], "pass a stream of it"),
    (REF.stream().batch(2), "pass the stream itself, and batch_size="),
    ({"x": np.arange(3)}, "a dict is no stream: pass what ref.stream(...) returned"),
    (None, "a NoneType is no stream"),
]
OF_THE_STREAM = [
    ("shuffle", "ref.stream(shuffle=...)"),
    ("seed", "ref.stream(shuffle_seed=...)"),
    ("cursor", "ref.stream(cursor=...)"),
    ("num_shard", "ref.stream(num_shards=...)"),
    ("rank", "ref.stream(shard_rank=...)"),
]
WHOLE, BOOL = "must be a whole number of at least 1", "must be True or False"
VALUES = [
    *(({"batch_size": size}, f"batch_size {WHOLE}") for size in (0, -1, True, 2.5)),
    ({"drop_remainder": 1}, f"drop_remainder {BOOL}"),
    ({"skip_finished_epoch": 1}, f"skip_finished_epoch {BOOL}"),
    ({"padding_field": "x"}, "the record has a 'x' already: choose another padding_field"),
]
OF_EPOCHS = [({"epochs": 0}, f"epochs {WHOLE}")]


def check_refusals(make, names):
    """Check what `make` says to what is no stream, and to names that it, or every adapter, does not have."""
    for given, says in NO_STREAMS:
        with pytest.raises(ConfigurationError, match=re.escape(says)):
            make(given)
    for name, says in (*OF_THE_STREAM, *names):
        with pytest.raises(ConfigurationError, match=f"has no argument '{name}'.*{re.escape(says)}"):
            make(REF.stream(), **{name: 1})


def check_values(make, values):
    """Check that `make`, of a stream and options, says what is wrong with values that make no sense."""
    for options, says in values:
        with pytest.raises(ConfigurationError, match=re.escape(says)):
            make(REF.stream(), **options)


def check_no_batch(make):
    """Check that `make` warns where a batch takes more records than there are, and must be full."""
    with pytest.warns(UserWarning, match="there is no batch to read: 10 records make none of 64"):
        assert list(make(REF.stream(), batch_size=64)) == []


def flipped(folder):
    """Return what checks, and what does not, of a cache in which a bit of field x has flipped."""
    storage = yogadl.open_storage(folder)
    x = np.arange(101 * 3, dtype=np.float32).reshape(101, 3)
    storage.submit({"id": np.arange(101, dtype=np.int32), "x": x}, "set", "1")
    (part,) = (path for path in folder.rglob("*.mdb") if x[50].tobytes() in path.read_bytes())
    with part.open("rb+") as file:
        file.seek(part.read_bytes().index(x[50].tobytes()) + 1)
        file.write(b"\1")
    return (storage.fetch("set", "1", check=check).stream(shuffle=True) for check in (True, False))


def windows(folder, lists):
    """Return a stream of windows of a cache: of an array, and in lists of bytes and of arrays that vary."""
    steps = [
        {
            "id": np.int32(n),
            "episode": np.int32(n // 7),
            "x": np.float32([n, -n]),
            "camera": bytes([65 + n % 26]) * (n % 3 + 1),
            "tokens": np.arange(n % 4, dtype=np.int32),
        }
        for n in range(53)
    ]
    ref = yogadl.open_storage(folder).submit(steps, "steps", "1")
    offsets = {"x": [-0.2, 0, 0.1], "camera": [-0.1, 0], "tokens": [0.1, 0]}
    found = ref.windows(offsets, "episode", fps=10)
    names = [name for name in map(str, found.spec.keys() or []) if name in ("x", "id", "x_is_pad", *lists)]
    return found.fields(*names).stream(shuffle=True, shuffle_seed=3, num_shards=2)


def values_of(column):
    """Return what a column of bytes or of arrays has, in whatever the framework holds it."""
    rows = column.numpy() if hasattr(column, "numpy") else column
    return [row if isinstance(row, bytes) else np.asarray(row).tolist() for row in rows]


class Adapter(AdapterContract):
    """The contract, and what this library's own adapters say besides.

    Attributes:
        names: Names that users of the framework would try, each with what the error says to write.
        lists: The fields of `windows` that its batches can have.
        values: Options that make no sense, each with what the error says.
    """

    names = ()
    lists = ("camera", "tokens")
    values = (*VALUES, *OF_EPOCHS)

    def test_values_that_make_no_sense_are_refused(self):
        check_values(lambda stream, **options: self.make(stream, **{"batch_size": 2, **options}), self.values)

    @pytest.mark.parametrize(("drop_remainder", "kept"), [(False, 10), (True, 8)])
    def test_that_nothing_is_left_of_an_epoch_is_told_unless_it_is_passed_over(
        self, drop_remainder, kept, caplog
    ):
        stream = REF.stream(shuffle=True, cursor=REF.stream(shuffle=True).cursor(kept))
        options = {"batch_size": 4, "drop_remainder": drop_remainder}
        assert list(self.begin(self.make(stream, **options))) == []
        (told,) = caplog.records
        assert "skip_finished_epoch=True" in told.message
        passed = self.begin(self.make(stream, **options, skip_finished_epoch=True))
        found = [
            y for batch in itertools.islice(passed, -(-kept // 4)) for y in np.asarray(batch["y"]).tolist()
        ]
        assert found == stream.indices(1)[:kept].tolist()
        assert len(caplog.records) == 1

    def test_a_bit_that_flipped_is_an_error_where_a_check_is_asked_for(self, tmp_path):
        checked, unchecked = flipped(tmp_path)
        assert sum(len(np.asarray(batch["id"])) for batch in self.begin(self.make(unchecked, 10))) == 101
        with pytest.raises((CacheFormatError, *self.errors), match="'set' version '1': field 'x', records"):
            list(self.begin(self.make(checked, 10)))

    def test_windows_of_time_are_those_of_the_stream(self, tmp_path):
        stream = windows(tmp_path, self.lists)
        wanted = [*stream.batch(8)]
        found = [*self.begin(self.make(stream, 8))]
        for ours, theirs in zip(found, wanted, strict=True):
            for name in theirs:
                if name in self.lists:
                    assert [values_of(column) for column in ours[name]] == list(map(values_of, theirs[name]))
                else:
                    assert np.array_equal(ours[name], theirs[name])

    def test_a_batch_of_sequences_has_one_record_of_each_lane(self):
        stream = REF.stream(shuffle=yogadl.Sequences(lanes=4, within="y", first="begins"))
        batches = list(self.begin(self.make(stream, 4)))
        assert [y for batch in batches for y in np.asarray(batch["y"]).tolist()] == stream.indices().tolist()
        assert all(np.asarray(batch["begins"]).all() for batch in batches)  # each record is an episode

    def test_batches_of_sequences_are_of_no_other_size(self):
        stream = REF.stream(shuffle=yogadl.Sequences(lanes=4, within="y"))
        for size in (2, 3, 8):
            with pytest.raises(ConfigurationError, match=f"its size must be 4, not {size}"):
                self.begin(self.make(stream, size))

    def test_what_is_no_stream_and_what_is_no_argument_is_refused(self):
        check_refusals(lambda stream, **names: self.make(stream, 2, **names), self.names)
