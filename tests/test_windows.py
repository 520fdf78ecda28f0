"""Windows of time: each record with some of those before and after it in its episode."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import LocalBucket, set_constants

import yogadl
from yogadl import Leaf
from yogadl.errors import ConfigurationError


def steps(episodes):
    """Return a record of each kind of field for each number of an episode."""
    return [
        {
            "episode": episode,
            "x": np.float32([n, -n]),
            "inner": {"y": n},
            "text": f"step {n}",
            "ragged": np.arange(n % 4),
            "note": {"n": [n]},
        }
        for n, episode in enumerate(episodes)
    ]


SPEC = {"ragged": Leaf("int64", (None,))}


def in_memory(episodes):
    return yogadl.from_source(steps(episodes), spec=SPEC, json=["note"])


def cached(path, episodes, **options):
    storage = yogadl.open_storage(path)
    return storage.submit(steps(episodes), "steps", "1", json=["note"], **options)


OFFSETS = {"x": [-1, 0, 2], "inner/y": range(3), "note": [0, -2]}


def expected(episodes, offsets, within="episode", *, stride=1, ends="repeat", drop_first=0, drop_last=0):
    """Return the windows, worked out record by record: the anchor, and the records of each field."""
    names = episodes if within else [0] * len(episodes)
    windows = []
    for episode in dict.fromkeys(names):
        records = [n for n, name in enumerate(names) if name == episode]
        for place in range(0, len(records), stride):
            if not drop_first <= place < len(records) - drop_last:
                continue
            places = {name: [place + offset for offset in each] for name, each in offsets.items()}
            are_out = {name: [not 0 <= one < len(records) for one in each] for name, each in places.items()}
            if ends == "drop" and any(map(any, are_out.values())):
                continue
            taken = {
                name: [records[min(max(one, 0), len(records) - 1)] for one in each]
                for name, each in places.items()
            }
            windows.append((records[place], taken, are_out))
    return windows


def check(ref, episodes, windows, ends="repeat"):
    """Compare windows of `OFFSETS`, read at once in another order, with those expected."""
    order = [*range(len(windows))][::-1] + [0] * 2
    read = [ref[order[0]], *ref.__getitems__(order[1:])]
    for (anchor, taken, are_out), found in zip([windows[n] for n in order], read, strict=True):
        assert found["x"].tolist() == [[n, -n] for n in taken["x"]]
        assert found["x"].dtype == np.float32
        assert found["inner"]["y"].tolist() == taken["inner/y"]
        assert found["note"] == [{"n": [n]} for n in taken["note"]]
        assert (found["episode"], found["text"]) == (episodes[anchor], f"step {anchor}")
        assert found["ragged"].tolist() == [*range(anchor % 4)]
        masks = (found.get("x_is_pad"), found["inner"].get("y_is_pad"), found.get("note_is_pad"))
        if ends == "drop":
            assert masks == (None, None, None)
        else:
            assert [mask.tolist() for mask in masks] == [*are_out.values()]


OPTIONS = st.fixed_dictionaries(
    {
        "stride": st.integers(1, 4),
        "ends": st.sampled_from(["repeat", "drop"]),
        "drop_first": st.integers(0, 3),
        "drop_last": st.integers(0, 3),
    }
)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.booleans(), OPTIONS)
def test_windows_are_those_worked_out_record_by_record(episodes, are_sorted, options):
    episodes = sorted(episodes, reverse=True) if are_sorted else episodes
    windows = expected(episodes, OFFSETS, **options)
    ref = in_memory(episodes)
    if not windows:
        with pytest.raises(ConfigurationError, match=f"none of the {len(episodes)} records"):
            ref.windows(OFFSETS, "episode", **options)
        return
    found = ref.windows(OFFSETS, "episode", **options)
    assert len(found) == len(windows)
    check(found, episodes, windows, options["ends"])
    check(pickle.loads(pickle.dumps(found)), episodes, windows, options["ends"])


EPISODES = {
    "side by side": [7] * 2 + [3] + [5] * 9 + [1] * 4,
    "scattered": [7, 3, 7, 5, 5, 3, 1, 7, 7, 5, 3, 2, 5, 1, 1, 7],
    "texts": [*"aabbbbbcaa", "dd", "dd"],
}


@pytest.mark.parametrize("episodes", EPISODES.values(), ids=EPISODES)
def test_windows_of_a_cache_are_kept_and_the_same_of_mapped_and_joined_records(tmp_path, episodes):
    ref = cached(tmp_path, episodes)
    windows = expected(episodes, OFFSETS)
    first = ref.windows(OFFSETS, "episode")
    check(first, episodes, windows)
    plans = [path for path in tmp_path.rglob("*") if path.is_file() and b"windows1" in path.read_bytes()]
    assert len(plans) == 1
    again = ref.windows(OFFSETS, "episode")
    assert again.fingerprint == first.fingerprint
    unpickled = pickle.loads(pickle.dumps(again))
    check(unpickled, episodes, windows)
    mapped = ref.map(dict, spec=ref.spec).windows(OFFSETS, "episode")
    check(mapped, episodes, windows)
    half = len(episodes) // 2
    joined = yogadl.concat([ref[:half], ref[half:]]).windows(OFFSETS, "episode")
    check(joined, episodes, windows)
    assert len({first.fingerprint, joined.fingerprint, ref.fingerprint}) == 3


def test_windows_of_compressed_values_and_of_a_bucket_are_those_of_mapped_rows(tmp_path):
    data = {"episode": np.arange(60) // 7, "x": np.arange(60 * 80, dtype=np.float64).reshape(60, 80)}
    offsets, order = {"x": [-2, 0, 3]}, [5, 59, 5, 0, 33]
    storage = yogadl.open_storage(tmp_path / "disk")
    bucket = (tmp_path / "bucket").as_uri()
    yogadl.open_storage(bucket, mirror=None).submit(data, "steps", "1")
    refs = [
        storage.submit(data, "steps", "1"),
        storage.submit(data, "compressed", "1", codec={"x": yogadl.Zstd()}),
        yogadl.open_storage(bucket, mirror=None).fetch("steps", "1"),
    ]
    episodes, numbers = data["episode"].tolist(), np.arange(60)
    for ref in refs:
        found = ref.windows(offsets, "episode").gather(order)
        for anchor, values in zip(order, found["x"], strict=True):
            own = numbers[data["episode"] == episodes[anchor]]
            records = np.clip(anchor + np.array(offsets["x"]), own[0], own[-1])
            assert np.array_equal(values, data["x"][records])


LISTS = {"text": [-2, 0, 0, 3], "ragged": [0, 1], "inner/frame": [-1, 0]}


def listed(episodes):
    """Return a record of each kind of value that is not stacked for each number of an episode."""
    return [
        {
            "episode": episode,
            "text": f"step {n}",
            "ragged": np.arange(n % 4),
            "inner": {"frame": bytes([n]) * (n % 5), "n": n},
        }
        for n, episode in enumerate(episodes)
    ]


def check_lists(ref, windows):
    """Compare windows of `LISTS`, one at a time and in batches, with those expected."""
    order = [*range(len(windows))][::-1] + [0] * 2
    batch = ref.gather(order)
    for place, number in enumerate(order):
        anchor, taken, are_out = windows[number]
        one = ref[number]
        assert one["text"] == [column[place] for column in batch["text"]]
        assert one["text"] == [f"step {n}" for n in taken["text"]]
        assert one["inner"]["frame"] == [bytes([n]) * (n % 5) for n in taken["inner/frame"]]
        assert one["inner"]["frame"] == [column[place] for column in batch["inner"]["frame"]]
        for ragged in (one["ragged"], [column[place] for column in batch["ragged"]]):
            assert [array.tolist() for array in ragged] == [[*range(n % 4)] for n in taken["ragged"]]
        assert one["inner"]["n"] == anchor
        masks = one["text_is_pad"], one["ragged_is_pad"], one["inner"]["frame_is_pad"]
        assert [mask.tolist() for mask in masks] == [*are_out.values()]
        assert batch["text_is_pad"][place].tolist() == are_out["text"]


@pytest.mark.parametrize("episodes", EPISODES.values(), ids=EPISODES)
def test_values_that_are_not_of_one_shape_are_in_a_list(tmp_path, episodes):
    windows = expected(episodes, LISTS)
    listed_spec = {"ragged": Leaf("int64", (None,))}
    cache = yogadl.open_storage(tmp_path).submit(listed(episodes), "steps", "1")
    assert cache.spec.is_like(yogadl.from_source(listed(episodes), spec=listed_spec).spec)
    for ref in (
        cache,
        yogadl.from_source(listed(episodes), spec=listed_spec),
        cache.map(dict, spec=cache.spec),
    ):
        found = ref.windows(LISTS, "episode")
        check_lists(found, windows)
        check_lists(pickle.loads(pickle.dumps(found)), windows)
        check_lists(found.map(dict, spec=found.spec), windows)
        check_lists(found.windows({"inner/n": [0]}, None).fields(*found.spec.keys()), windows)
    stream = found.stream(shuffle=True).batch(4)
    for ours, theirs in zip(stream, stream.prefetch(2, workers=1), strict=True):
        assert repr(ours) == repr(theirs)


def at(record, name):
    for key in name.split("/"):
        record = record[key]
    return record


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """The same steps in memory, in a cache, and mapped."""
    episodes = [3, 3, 3, 1, 1, 2]
    cache = cached(tmp_path_factory.mktemp("caches"), episodes)
    return episodes, (cache, in_memory(episodes), cache.map(dict, spec=cache.spec))


FIELDS = ("episode", "x", "inner/y", "text", "ragged", "note")
SOME = st.dictionaries(
    st.sampled_from(FIELDS),
    st.one_of(st.just([0]), st.lists(st.integers(-2, 2), min_size=1, max_size=3)),
    min_size=1,
)


@given(SOME, st.sets(st.sampled_from(["episode", "x", "inner", "text", "ragged", "note"]), min_size=1))
def test_each_field_has_its_own_offsets_and_the_others_none(bases, offsets, read):
    """Also where all offsets of a field are 0 alone, whatever the order of the fields and which are read."""
    episodes, refs = bases
    records, windows = steps(episodes), expected(episodes, offsets)
    for ref in refs:
        found = ref.windows(offsets, "episode", masks=None)
        assert [field.leaf.shape for field in found.spec.fields if field.name == "x"] == [
            (len(offsets["x"]), 2) if "x" in offsets else (2,)
        ]
        for chosen in (found, found.fields(*read)):
            for (anchor, taken, _), window in zip(
                windows, chosen.__getitems__(range(len(windows))), strict=True
            ):
                for name in FIELDS:
                    if chosen is found or name.split("/")[0] in read:
                        numbers = taken.get(name, anchor)
                        wanted = (
                            at(records[numbers], name)
                            if name not in offsets
                            else [at(records[number], name) for number in numbers]
                        )
                        assert repr(plain(at(window, name))) == repr(plain(wanted))


def plain(value):
    """Return a value without arrays."""
    if isinstance(value, list):
        return list(map(plain, value))
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def test_no_windows_have_empty_columns(tmp_path):
    ref = yogadl.open_storage(tmp_path).submit(listed([1, 1, 2]), "steps", "1")
    for steps in (ref, ref[:0]):
        batch = steps.windows(LISTS, "episode").gather([])
        assert batch["text"] == [[], [], [], []]
        assert batch["text_is_pad"].shape == (0, 4)


def test_each_array_of_a_list_is_memory_of_its_own():
    ref = in_memory([1, 1]).windows({"ragged": [0, 1, 1]}, None)
    one, two = ref.__getitems__([0, 1])
    arrays = [*one["ragged"], *two["ragged"]]
    for array in arrays:
        array += 1
    assert [array.tolist() for array in arrays] == [[], [1], [1], [1], [1], [1]]


def test_single_values_of_bytes_are_a_list():
    ref = yogadl.from_source([b"a", b"bc", b""]).windows({None: [-1, 0]}, None, masks=None)
    assert [*ref] == [[b"a", b"a"], [b"a", b"bc"], [b"bc", b""]]
    assert ref.gather([1, 0]) == [[b"a", b"a"], [b"bc", b"a"]]


def test_a_list_has_as_many_values_as_a_record_has_fields():
    ref = yogadl.from_source([b"a", b"b"]).windows({None: range(4096)}, None, masks=None)
    assert ref[0] == [b"a"] + [b"b"] * 4095


def test_a_window_of_a_window_is_that_of_each_value():
    ref = in_memory([1, 1, 2]).windows({"inner/y": [0, 1], "text": [-1, 0]}, "episode")
    twice = ref.windows({"inner/y": [0, -1], "text/0": [1, 0]}, None, masks=None)
    assert twice[1]["inner"]["y"].tolist() == [[1, 1], [0, 1]]
    assert twice[1]["text"] == [["step 2", "step 0"], "step 1"]
    assert twice[1]["text_is_pad"].tolist() == [False, False]


def test_a_window_of_windows_whose_masks_have_the_same_name_is_refused():
    ref = in_memory([1, 1, 2]).windows({"inner/y": [0, 1]}, "episode")
    with pytest.raises(ConfigurationError, match="there is already a field 'inner/y_is_pad'"):
        ref.windows({"inner/y": [0, 1]}, "episode")
    assert (
        ref.windows({"inner/y": [0, 1]}, None, masks="{}_is_again")[2]["inner"]["y"].tolist() == [[2, 2]] * 2
    )


# Seconds.


def timed(times, episodes=None, dtype=np.float64):
    times = np.array(times, dtype)
    return yogadl.from_source(
        {"episode": np.zeros(len(times), int) if episodes is None else np.array(episodes), "t": times,
         "n": np.arange(len(times))}
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_offsets_in_seconds_are_those_in_records(dtype):
    times = [*np.arange(20) / 30, *np.arange(9) / 30]
    ref = timed(times, [0] * 20 + [1] * 9, dtype)
    wanted = ref.windows({"n": [-3, 0, 2]}, "episode")
    for seconds in ([-0.1, 0, 2 / 30], np.array([-0.1, 0, 2 / 30])):
        for options in ({}, {"time": "t"}):
            found = ref.windows({"n": seconds}, "episode", fps=30, **options)
            assert found.fingerprint == wanted.fingerprint
            assert found.gather(range(29))["n"].tolist() == wanted.gather(range(29))["n"].tolist()
    pickle.loads(pickle.dumps(found)).gather([3])


def test_times_are_compared_of_records_that_windows_have(monkeypatch):
    set_constants(monkeypatch, LENGTHS_READ_RECORDS=4)
    times = np.arange(20) / 10
    times[13:] += 0.05  # a gap
    ref = timed(times)
    message = (
        r"record 12: 0\.1 s from it, field 'n' wants the time 1\.3, and record 13 there, 1 records after"
    )
    with pytest.raises(ConfigurationError, match=message):
        ref.windows({"n": [0, 0.1]}, "episode", time="t", fps=10)
    with pytest.raises(
        ConfigurationError, match=r"record 19: -1.3 s from it, .*record 6 there, 13 records before"
    ):
        ref.windows({"n": [-1.3]}, "episode", time="t", fps=10, drop_first=19)
    for options in (
        {"tolerance_s": 0.051},
        {"drop_last": 8},  # the last anchor is record 11
        {"stride": 13},  # anchors are 0 and 13
    ):
        ref.windows({"n": [0, 0.1]}, "episode", time="t", fps=10, **options)
    apart = timed(times, [0] * 13 + [1] * 7)
    apart.windows({"n": [0, 0.1, -0.7, 99]}, "episode", time="t", fps=10)


def test_times_of_scattered_episodes_are_compared_within_each(monkeypatch):
    set_constants(monkeypatch, LENGTHS_READ_RECORDS=3)
    times, episodes = np.arange(40) // 2 / 10, np.arange(40) % 2
    timed(times, episodes).windows({"n": [-0.3, 0, 0.2]}, "episode", time="t", fps=10, ends="drop")
    times[21] += 0.01
    with pytest.raises(
        ConfigurationError, match=r"record 17: 0.2 s from it, .*record 21 there, 2 records after"
    ):
        timed(times, episodes).windows({"n": [0, 0.2]}, "episode", time="t", fps=10)


def test_seconds_between_records_differ_from_any():
    ref = timed(np.arange(9) / 10)
    with pytest.raises(
        ConfigurationError, match=r"record 0: 0.02 s from it, .*record 0 there, 0 records after"
    ):
        ref.windows({"n": [0.02]}, "episode", time="t", fps=10)
    assert ref.windows({"n": [0.02, 10**300]}, "episode", fps=10**400)[2]["n"].tolist() == [8, 8]


def test_a_time_that_differs_by_just_the_tolerance_is_near():
    ref = timed([0, 1.5])
    ref.windows({"n": [1]}, "episode", time="t", fps=1, tolerance_s=0.5)
    with pytest.raises(ConfigurationError, match=r"a larger tolerance_s than 0.4999"):
        ref.windows({"n": [1]}, "episode", time="t", fps=1, tolerance_s=0.4999)


def test_a_time_that_is_no_number_is_never_near():
    with pytest.raises(ConfigurationError, match="record 1: 0 s from it"):
        timed([0, np.nan]).windows({"n": [0]}, "episode", time="t", fps=1)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(0, 29),
    st.integers(-4, 4),
    st.integers(1, 3),
)
def test_a_time_that_is_off_is_found_where_a_window_has_it(episodes, off, rows, stride):
    off %= len(episodes)
    places = [episodes[:n].count(episode) for n, episode in enumerate(episodes)]
    times = [place + 0.5 * (n == off) for n, place in enumerate(places)]
    windows = expected(episodes, {"n": [rows]}, stride=stride)
    pairs = [(anchor, taken["n"][0]) for anchor, taken, are_out in windows if not are_out["n"][0]]
    is_wrong = any((anchor == off) != (record == off) for anchor, record in pairs)
    ref = timed(times, episodes)
    if is_wrong:
        with pytest.raises(ConfigurationError, match="from it, field 'n' wants the time"):
            ref.windows({"n": [float(rows)]}, "episode", time="t", fps=1, stride=stride)
    else:
        ref.windows({"n": [float(rows)]}, "episode", time="t", fps=1, stride=stride)


# Kept beside the cache, and read.


@pytest.mark.parametrize("name", ["side by side", "scattered"])
def test_a_kept_index_with_any_byte_changed_is_made_again(tmp_path, name):
    episodes = EPISODES[name]
    ref, windows = cached(tmp_path, episodes), expected(episodes, OFFSETS)
    first = ref.windows(OFFSETS, "episode")
    used = pickle.dumps(first)
    [path] = [path for path in tmp_path.rglob("*") if path.is_file() and b"windows1" in path.read_bytes()]
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        found = pickle.loads(used) if place % 2 else ref.windows(OFFSETS, "episode")
        assert found.fingerprint == first.fingerprint
        check(found, episodes, windows)
        assert path.read_bytes() == whole
    for cut in (0, 8, 80, len(whole) - 8):
        path.write_bytes(whole[:cut])
        check(ref.windows(OFFSETS, "episode"), episodes, windows)


@pytest.mark.parametrize("field", ["x", "raw"])
def test_each_byte_of_a_bucket_is_requested_once_a_batch(tmp_path, monkeypatch, field):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    rows = np.random.default_rng(0).integers(0, 256, (40, 20_000), np.uint8)
    steps = [{"x": row, "raw": row.tobytes(), "episode": n // 20} for n, row in enumerate(rows)]
    bucket = f"file://{tmp_path}/bucket"
    yogadl.open_storage(bucket, mirror=None).submit(steps, "steps", "1")
    ref = yogadl.open_storage(bucket, mirror=None).fetch("steps", "1")
    windows = ref.windows({field: [-1, 0, 0, 2]}, None, masks=None).fields(field)
    asked, get = [], LocalBucket.get

    def noted(self, name, start=0, stop=None, *, tag=None):
        asked.append((name, start, stop))
        return get(self, name, start, stop, tag=tag)

    monkeypatch.setattr(LocalBucket, "get", noted)
    for anchors in (range(5, 20), [7, 9, 8, 8, 30]):
        asked.clear()
        found = windows.gather(list(anchors))[field]
        records = [[min(anchor + offset, 39) for offset in (-1, 0, 0, 2)] for anchor in anchors]
        read = (
            np.array([[np.frombuffer(one, np.uint8) for one in step] for step in found])
            if field == "raw"
            else found
        )
        assert np.array_equal(read.transpose(1, 0, 2) if field == "raw" else read, rows[records])
        bounds = sorted(asked)
        assert all(
            one[0] != next_one[0] or one[2] <= next_one[1] for one, next_one in itertools.pairwise(bounds)
        )
        most = len({record for each in records for record in each}) * 20_000
        assert sum(stop - start for name, start, stop in bounds if name.endswith(".mdb")) < 1.5 * most


def test_a_mix_of_windows_has_each_window_of_each_part(tmp_path):
    ref = cached(tmp_path, EPISODES["scattered"])
    parts = {
        "short": (ref.windows({"x": [0, 1], "text": [-1, 0]}, "episode", ends="drop"), 0.5),
        "long": (ref[5:].windows({"x": [1, 2], "text": [0, 1]}, "episode", masks=None), 0.5),
    }
    mix = yogadl.mix(parts, seed=1)
    stream = mix.stream(shuffle=True, shuffle_seed=2)
    found = [window["text"] + window["x"].tolist() for window in stream]
    wanted = [window["text"] + window["x"].tolist() for part, _ in parts.values() for window in part]
    assert len(found) == len(stream)
    assert all(window in wanted for window in found)
    cursor = stream.cursor(5)
    rest = [
        window["text"] + window["x"].tolist()
        for window in mix.stream(shuffle=True, shuffle_seed=2, cursor=cursor)
    ]
    assert rest == found[5:]


def test_without_a_field_of_episodes_all_records_are_one():
    ref = in_memory([1, 2, 3]).windows(OFFSETS, None)
    check(ref, [1, 2, 3], expected([1, 2, 3], OFFSETS, None))


def test_single_values_have_windows():
    ref = yogadl.from_source(np.arange(5))
    found = ref.windows({None: [-1, 0]}, None, masks=None)
    assert found.gather(range(5)).tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]
    with pytest.raises(ConfigurationError, match="masks need records that are dicts"):
        ref.windows({None: [-1, 0]}, None)


def test_dates_number_episodes():
    days = np.array(["2024-01-01", "NaT", "NaT", "2024-01-02", "2024-01-01"], "datetime64[D]")
    ref = yogadl.from_source({"day": days, "n": np.arange(5)}).windows({"n": [1]}, "day")
    assert [window["n"].tolist() for window in ref] == [[4], [4], [2], [2], [3]]


def test_offsets_far_beyond_all_records_are_those_of_the_ends():
    ref = in_memory([1, 1, 1]).windows({"inner/y": [-(10**30), 10**30]}, "episode", stride=10**30)
    assert [window["inner"]["y"].tolist() for window in ref] == [[0, 2]]
    far = {"offsets": {"x": [0]}, "within": "episode"}
    with pytest.raises(ConfigurationError, match="none of the 3 records"):
        in_memory([1, 1, 1]).windows(**far, drop_first=10**30)


def test_a_split_by_episode_has_whole_episodes():
    ref = in_memory(sorted([*range(20)] * 5)).windows({"x": range(4)}, "episode", drop_last=1)
    parts = ref.split(0.5, key="episode")
    episodes = [{int(window["episode"]) for window in part} for part in parts]
    assert not episodes[0] & episodes[1]
    assert sum(map(len, parts)) == 80
    assert all(len(part) == 4 * len(own) for part, own in zip(parts, episodes, strict=True))


@pytest.mark.parametrize("episodes", EPISODES.values(), ids=EPISODES)
def test_no_window_reaches_into_the_other_side_of_a_split(tmp_path, episodes):
    ref, offsets = cached(tmp_path, episodes), {"x": range(-3, 4), "text": [-9, 9]}
    before = [part.windows(offsets, "episode") for part in ref.split(0.5, seed=3, key="episode")]
    after = ref.windows(offsets, "episode").split(0.5, seed=3, key="episode")
    for parts in (before, after):
        sides = []
        for part in parts:
            own = {n for window in part for n in window["x"][:, 0].astype(int).tolist()}
            own |= {int(text.split()[1]) for window in part for text in window["text"]}
            sides.append(own)
            assert all(
                episodes[n] == window["episode"] for window in part for n in window["x"][:, 0].astype(int)
            )
        assert not sides[0] & sides[1]
        assert sides[0] | sides[1] == {*range(len(episodes))}
    assert [[*map(repr, part)] for part in before] == [[*map(repr, part)] for part in after]


def test_what_the_index_of_episodes_takes_is_told(tmp_path):
    ref = cached(tmp_path, EPISODES["side by side"])
    side_by_side = ref.windows({"x": [0]}, "episode")
    assert "16 records, an index of 72 B in memory" in repr(side_by_side)
    scattered = cached(tmp_path, EPISODES["scattered"]).windows({"x": [0]}, "episode")
    assert f"an index of {(5 + 6 + 16) * 8} B in memory" in repr(scattered.fields("x"))
    plan = scattered.stream(shuffle=True).plan()
    assert plan.index_bytes == 216
    assert str(plan).startswith(
        f"1 epoch of 16 records, {plan.bytes / 1000:.1f} kB in memory, besides an index of 216 B"
    )
    assert (ref.stream().plan().index_bytes, "index" in str(ref.stream().plan())) == (0, False)


def test_the_first_records_of_a_later_version_have_the_windows_of_the_earlier_one(tmp_path):
    for episodes in EPISODES["side by side"], EPISODES["scattered"]:
        storage = yogadl.open_storage(tmp_path / str(episodes[1]))
        old = storage.submit(steps(episodes), "steps", "1", json=["note"])
        cursor = old.windows(OFFSETS, "episode").stream(shuffle=True).cursor(5)
        new = storage.append(steps(episodes)[:3], "steps", "2", base_version="1")
        count = len(episodes)
        found = new[:count].windows(OFFSETS, "episode")
        assert found.fingerprint == old.windows(OFFSETS, "episode").fingerprint
        assert new.windows(OFFSETS, "episode").fingerprint != found.fingerprint
        next(iter(found.stream(shuffle=True, cursor=cursor)))


@pytest.mark.parametrize(
    ("offsets", "options", "message"),
    [
        ({}, {}, "offsets must be a dict"),
        ([-1, 0], {}, "offsets must be a dict"),
        ({"z": [0]}, {}, "there is no field 'z' that could be put into windows"),
        ({"x": [0.5]}, {}, "must be whole numbers"),
        ({"x": [True]}, {}, "must be whole numbers"),
        ({"x": []}, {}, "must be whole numbers"),
        ({"x": 3}, {}, "must be whole numbers"),
        ({"x": range(2**37)}, {}, "are too many"),
        ({"text": range(4097)}, {}, "4097 offsets of field 'text' are too many"),
        ({"x": [0.5]}, {}, "For seconds, pass fps="),
        ({"x": [0]}, {"within": "none"}, "no field 'none' that could be an episode's number"),
        ({"x": [0]}, {"within": "x"}, "within='x' is float32 of shape"),
        ({"x": [0]}, {"within": "note"}, "within='note' is json"),
        ({"x": [0]}, {"ends": "cut"}, "ends must be"),
        ({"x": [0]}, {"stride": 0}, "stride must be a whole number of at least 1, not 0"),
        ({"x": [0]}, {"drop_first": -1}, "drop_first must be a whole number of at least 0, not -1"),
        ({"x": [0]}, {"drop_last": 0.5}, "drop_last must be"),
        ({"x": [0]}, {"masks": "pad"}, "masks must be a name"),
        ({"x": [0]}, {"masks": "{}"}, "there is already a field 'x'"),
        ({"inner/y": [0]}, {"masks": "{}"}, "there is already a field 'inner/y'"),
        ({"x": [99]}, {"ends": "drop"}, "none of the 3 records"),
        ({"x": [0]}, {"ends": "drop", "masks": "{}_is_pad"}, "no value of such a window is repeated"),
        ({"x": [0]}, {"time": "inner/y"}, "time='inner/y' needs fps="),
        ({"x": [0]}, {"time": "z", "fps": 1}, "no field 'z' that could be a time"),
        ({"x": [0]}, {"time": "x", "fps": 1}, "time='x' is float32 of shape"),
        ({"x": [0]}, {"time": "text", "fps": 1}, "time='text' is str"),
        ({"x": [0]}, {"fps": 0}, "fps must be a number above 0"),
        ({"x": [0]}, {"fps": float("inf")}, "fps must be a number above 0"),
        ({"x": [0]}, {"tolerance_s": -1}, "tolerance_s must be a number above 0"),
        ({"x": [float("nan")]}, {"fps": 1}, "must be numbers of seconds"),
        ({"x": [True]}, {"fps": 1}, "must be numbers of seconds"),
        ({"x": [10**400]}, {"fps": 1}, "must be numbers of seconds"),
        ({"x": []}, {"fps": 1}, "must be numbers of seconds"),
        ({"x": "01"}, {"fps": 1}, "must be numbers of seconds"),
        ({"x": 3}, {"fps": 1}, "must be numbers of seconds"),
    ],
)
def test_arguments_that_make_no_sense(offsets, options, message):
    with pytest.raises(ConfigurationError, match=message):
        in_memory([1, 1, 2]).windows(offsets, **{"within": "episode"} | options)


def test_a_function_is_called_once_for_each_record_of_a_batch_and_a_field_is_read_alone(tmp_path):
    called = []

    def noted(record):
        called.append(record["inner"]["y"])
        return record

    ref = cached(tmp_path, [1] * 20)
    found = ref.map(noted, spec=ref.spec).windows(OFFSETS, None)
    found.gather(range(5, 10))
    assert sorted(called) == [*range(3, 12)]


def test_streams_of_workers_and_shards(tmp_path):
    episodes = sorted([*range(6)] * 7)
    ref = cached(tmp_path, episodes).windows(OFFSETS, "episode").fields("x", "x_is_pad", "episode")
    stream = ref.stream(shuffle=True).batch(4)
    for ours, theirs in zip(stream, stream.prefetch(2, workers=1), strict=True):
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name])
    shards = [ref.stream(shard_rank=rank, num_shards=2) for rank in range(2)]
    assert sum(len([*shard]) for shard in shards) == len(ref)
