"""What reading a cache by range takes is known before it is read: compared with the requests really made."""

import gc
import json

import numpy as np
import pytest
from inside import Cut, NumberedBatches, set_constants
from processes import wait_until

import yogadl
from yogadl.cli import main
from yogadl.errors import ConfigurationError, SpendingError

COUNT = 3001


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A bucket in a folder, with a dataset in some parts."""
    folder = tmp_path_factory.mktemp("bucket")
    random = np.random.default_rng(1)
    records = (
        {
            "id": number,
            "image": random.integers(0, 255, (40, 50), np.uint8),
            "tokens": np.arange(random.integers(1, 700), dtype=np.int32),
            "name": f"n{number}" * (number % 4),
            "vector": np.zeros(700, np.float32),
        }
        for number in range(COUNT)
    )
    yogadl.open_storage(folder).submit(records, "set", "1", build=yogadl.BuildOptions(part_bytes=2_100_000))
    return folder.as_uri()


def fetched(url, **options):
    return yogadl.open_storage(url, **({"mirror": None} | options)).fetch("set", "1")


def planned_and_made(ref, read):
    """Return requests and bytes that were planned, and that were made."""
    plan = read.plan()
    way = plan.way(plan.chosen)
    before = ref.locality()  # a function of the user's is called with the first record
    list(read)
    after = ref.locality()
    return (way.requests, way.bytes), (after.ranges - before.ranges, after.range_bytes - before.range_bytes)


FIXED = ("id", "image", "vector")
EXACT = {
    "a shuffle of fixed fields": lambda ref: ref.fields(*FIXED).stream(shuffle=True).batch(32),
    "fixed fields in order": lambda ref: ref.fields(*FIXED).stream().batch(7),
    "small fields": lambda ref: ref.fields("id").stream(shuffle=True).batch(32),
    "a shard": lambda ref: (
        ref.fields(*FIXED).stream(shuffle=True, shuffle_seed=2, shard_rank=1, num_shards=3).batch(8)
    ),
    "a shard in order": lambda ref: ref.fields(*FIXED).stream(shard_rank=2, num_shards=4).batch(32),
    "blocks of few records": lambda ref: (
        ref.fields(*FIXED).stream(shuffle=yogadl.Blocks(records=3, window=4, lanes=4)).batch(16)
    ),
    "records": lambda ref: ref.fields(*FIXED).stream(shuffle=True),
    "some records": lambda ref: ref.fields(*FIXED).select(np.arange(0, COUNT, 3)).stream(shuffle=True),
    "a slice": lambda ref: ref[100:2500:2].fields("image").stream().batch(8),
    "a remainder dropped": lambda ref: ref.fields(*FIXED).stream().batch(1000, drop_remainder=True),
    "joined": lambda ref: yogadl.concat([ref[:1000], ref[2000:]]).fields(*FIXED).stream().batch(8),
    "mixed": lambda ref: (
        yogadl.mix({"a": (ref[:1500], 0.6), "b": (ref[1500:], 0.4)}).fields(*FIXED).stream().batch(8)
    ),
    "mapped": lambda ref: ref.fields("image").map(lambda one: one["image"][0]).stream(shuffle=True).batch(8),
    "drawn, some of them often": lambda ref: (
        ref.fields(*FIXED).sampled(weights=np.arange(COUNT) ** 3).stream(shuffle=True).batch(8)
    ),
    "some of them twice": lambda ref: yogadl.concat([ref, ref[:700]]).fields("image").stream().batch(8),
    "passed on": lambda ref: (
        ref.fields("image").stream(shuffle=True).map(lambda one: one["image"][0]).batch(8)
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_requests_for_fixed_fields_are_those_that_are_planned(url, name):
    ref = fetched(url)
    planned, made = planned_and_made(ref, EXACT[name](ref))
    assert planned == made


def test_a_record_that_is_drawn_again_soon_is_requested_once(url):
    ref = fetched(url)
    rows = ref.fields("image")[:9].sampled(records=300, weights=np.arange(9))
    list(rows.stream(shuffle=True).batch(8))
    assert ref.locality().range_bytes == 8 * 2000


@pytest.mark.parametrize("ahead", ["batches", "records", "threads", "rows by number"])
def test_what_a_stream_announced_is_gone_with_it(url, ahead):
    ref = fetched(url)
    images = ref.fields("image").stream(shuffle=True)
    ways = {
        "batches": images.batch(8),
        "records": images,
        "threads": images.batch(8).prefetch(2, threads=2),
        "rows by number": images,
    }
    if ahead == "rows by number":
        reader = NumberedBatches(images, Cut(8))
        reader.read(0, 0)
        reader.read(0, 1)
    else:
        reader = iter(ways[ahead])
        next(reader)
        next(reader)
    ranges = ref._records.open()[1].parts.away._ranges
    assert len(ranges._known().rows) > 0
    del reader, ways, images
    gc.collect()
    wait_until(lambda: not ranges._known().rows, "the announced ranges are gone")


@pytest.mark.parametrize("blocks", [None, yogadl.Blocks(records=50, window=4, lanes=4)])
def test_ways_without_a_mirror_take_nothing_of_the_disk(url, blocks):
    plan = fetched(url).stream(shuffle=blocks or True).batch(16).plan(epochs=2)
    assert [plan.way(name).disk_bytes for name in ("ranges", "blocks")] == [0, 0]


ABOUT = {
    "in order": lambda ref: ref.stream().batch(32),
    "a shuffle": lambda ref: ref.stream(shuffle=True).batch(32),
    "varying fields": lambda ref: ref.fields("tokens").stream(shuffle=True).batch(32),
    "small values": lambda ref: ref.fields("name").stream(shuffle=True).batch(32),
    "values of all sizes": lambda ref: ref.fields("name", "tokens").stream(shuffle=True).batch(32),
    "a shard": lambda ref: ref.stream(shuffle=True, shard_rank=1, num_shards=4).batch(32),
    "in threads": lambda ref: ref.stream(shuffle=True).batch(16).prefetch(4, threads=3),
    "joined": lambda ref: yogadl.concat([ref[:1000], ref[2000:]]).stream(shuffle=True).batch(8),
    "blocks": lambda ref: ref.stream(shuffle=yogadl.Blocks(records=50, window=4, lanes=4)).batch(16),
}


@pytest.mark.parametrize("name", ABOUT)
def test_requests_for_varying_fields_are_about_those_that_are_planned(url, name):
    ref = fetched(url)
    planned, made = planned_and_made(ref, ABOUT[name](ref))
    assert planned == pytest.approx(made, rel=0.05)


CHUNKS = {
    "a shuffle": lambda ref: ref.chunks("tokens", 100).stream(shuffle=True).batch(8),
    "in order": lambda ref: ref.chunks("tokens", 1000, drop_remainder=False, pad=0).stream().batch(8),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_requests_for_chunks_are_those_that_are_planned(url, name):
    """Of a fresh process: the lengths of the documents are read first."""
    ref = fetched(url)
    loader = CHUNKS[name](ref)
    way = loader.plan().way("ranges")
    list(loader)
    assert (way.requests, way.bytes) == (ref.locality().ranges, ref.locality().range_bytes)


def test_requests_for_chunks_of_some_records_are_about_those_that_are_planned(url):
    """Of the others, the plan does not know the lengths."""
    ref = fetched(url)
    loader = ref[100:2000].chunks("tokens", 64).stream(shuffle=True).batch(8)
    way = loader.plan().way("ranges")
    list(loader)
    made = ref.locality().ranges, ref.locality().range_bytes
    assert (way.requests, way.bytes) == pytest.approx(made, rel=0.05)


@pytest.mark.parametrize("kept_bytes", [0, 2**20])
@pytest.mark.parametrize("name", ["flag", "mark"])
def test_values_of_one_byte_are_counted(tmp_path, monkeypatch, name, kept_bytes):
    set_constants(monkeypatch, KEPT_BYTES=kept_bytes, GAP_BYTES=0)
    flags = np.arange(COUNT) % 2 > 0
    columns = {"flag": flags, "mark": [b"x" * flag for flag in flags.tolist()]}
    yogadl.open_storage(tmp_path).submit(columns, "set", "1")
    ref = fetched(tmp_path.as_uri())
    planned, made = planned_and_made(ref, ref.fields(name).stream(shuffle=True).batch(32))
    assert planned == pytest.approx(made, rel=0.05)


def test_entries_that_are_not_kept_are_counted_once(url, monkeypatch):
    set_constants(monkeypatch, KEPT_BYTES=0)
    ref = fetched(url)
    planned, made = planned_and_made(ref, ref.fields("tokens").stream(shuffle=True).batch(64))
    assert planned == pytest.approx(made, rel=0.05)


@pytest.fixture
def small_chunks(monkeypatch):
    """Let the order be asked for so few records at a time."""
    set_constants(monkeypatch, RUN_INDICES=128, PLAN_INDICES=128)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", ["a shuffle of fixed fields", "a shard in order", "small fields"])
@pytest.mark.parametrize("verify", [None, "block"])
def test_the_first_so_many_records_stand_for_a_large_epoch(url, monkeypatch, name, verify):
    ref = fetched(url, verify=verify)
    whole = EXACT[name](ref).plan().way("ranges")
    set_constants(monkeypatch, COUNTED=500)
    way = EXACT[name](ref).plan().way("ranges")
    assert (way.requests, way.bytes) == pytest.approx((whole.requests, whole.bytes), rel=0.05)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("over", [0, 1])
def test_an_epoch_is_counted_whole_up_to_a_size(url, monkeypatch, over):
    """The first half of the records are neighbours, and asked for together; the others are not."""
    chosen = [*range(128), *range(200, 2760, 20)]
    stream = fetched(url).fields("image").select(chosen).stream().batch(8)
    whole = stream.plan().way("ranges").requests
    assert whole > 128
    set_constants(monkeypatch, COUNTED=128 + over)
    assert (stream.plan().way("ranges").requests == whole) == bool(over)


def test_what_is_kept_is_read_in_the_first_epoch_alone(url):
    ref = fetched(url)
    small = ref.fields("id").stream(shuffle=True).batch(32)
    assert small.plan(epochs=5).way("ranges") == small.plan().way("ranges")
    large = ref.fields("image").stream(shuffle=True).batch(32)
    assert large.plan(epochs=5).way("ranges").bytes == 5 * COUNT * 2000


def test_a_plan_says_what_a_mirror_takes(url, tmp_path, monkeypatch):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    ref = fetched(url, mirror=tmp_path)
    locality = ref.locality()
    plan = ref.stream(shuffle=True, num_shards=2).plan()
    assert plan.chosen == "mirror"
    assert plan.why == "Mirror(fill='auto'), and this process reads 50% of it an epoch"
    mirror = plan.way("mirror")
    assert (mirror.requests, mirror.bytes, mirror.disk_bytes) == (
        locality.parts,
        locality.bytes,
        locality.bytes,
    )
    assert ref.stream(num_shards=3).plan().chosen == "ranges"
    assert (
        fetched(url, mirror=yogadl.Mirror(tmp_path, fill="always")).stream(num_shards=3).plan().chosen
        == "mirror"
    )
    never = fetched(url, mirror=yogadl.Mirror(tmp_path, fill="never")).stream().plan()
    assert (never.chosen, never.why) == ("ranges", "Mirror(fill='never')")
    assert ref.locality().parts_here == 0
    assert ref.locality().ranges == 0


def test_what_is_here_takes_nothing(url, tmp_path):
    for ref in (
        fetched(url, mirror=tmp_path),
        yogadl.open_storage(url.removeprefix("file://")).fetch("set", "1"),
    ):
        plan = ref.stream(shuffle=True).batch(32).plan(epochs=2, records_per_s=100)
        assert plan.chosen == "here"
        assert {(way.requests, way.bytes, way.disk_bytes, way.price) for way in plan.ways} == {(0, 0, 0, 0)}
        assert str(plan).endswith("here, since all parts are on this machine")


def test_what_is_here_in_part_is_counted_in_part(url, tmp_path):
    fetched(url, mirror=tmp_path)
    for part in sorted(tmp_path.rglob("*.mdb"))[::2]:
        part.unlink()
    ref = fetched(url, mirror=yogadl.Mirror(tmp_path, fill="never"))
    planned, made = planned_and_made(ref, ref.fields(*FIXED).stream(shuffle=True).batch(32))
    assert planned == made
    assert ref.stream().plan().way("mirror").bytes == ref.locality().bytes - ref.locality().bytes_here


def test_a_plan_says_requests_a_second_and_a_price(url):
    ref = fetched(url, limits=yogadl.Limits(prices=yogadl.Prices(per_1000_requests=4, per_gb=1000)))
    loader = ref.fields("image").stream(shuffle=True).batch(32)
    plan = loader.plan(records_per_s=COUNT / 10)
    way = plan.way("ranges")
    assert way.requests_per_s == pytest.approx(way.requests / 10)
    assert way.price == pytest.approx(way.requests * 0.004 + way.bytes * 1e-6)
    assert loader.plan(prices=yogadl.Prices()).way("ranges").price == 0
    assert plan.way("mirror").requests_per_s is None
    lines = str(plan).splitlines()
    assert lines[0] == "1 epoch of 3,001 records, 6.0 MB in memory: ranges, since mirror=None"
    assert lines[1].split() == ["requests", "requests/s", "bytes", "disk", "price"]
    assert [line.split()[0] for line in lines[2:]] == ["ranges", "mirror", "blocks*", "*"]
    assert f"${way.price:,.2f}" in lines[2]
    free, cheap = (loader.plan(prices=yogadl.Prices(price)) for price in (0, 1e-6))
    assert [str(one).splitlines()[2].split()[-1] for one in (free, cheap)] == ["$0.00", "<$0.01"]


def test_blocks_are_an_estimate_of_each_block_once(url):
    ref = fetched(url)
    way = ref.fields("image").stream().plan().way("blocks")
    assert way.bytes == COUNT * 2000
    half = ref.fields("image").stream(num_shards=2).plan(epochs=4).way("blocks")
    assert half.requests == pytest.approx(2 * way.requests, abs=1)


def test_a_store_has_usual_prices(url):
    from inside import usual_prices

    assert usual_prices("s3://bucket/caches").per_1000_requests == 0.0004
    assert usual_prices("gs://bucket").of(1_000_000, 10**9) == pytest.approx(0.4)
    assert usual_prices(url) == yogadl.Prices()


def test_there_is_no_plan_of_what_comes_from_no_storage(url):
    plan = yogadl.from_source([1, 2, 3]).stream().plan()
    assert str(plan) == (
        "1 epoch of 3 records, 24 B in memory: the records come from no storage, so the cost is unknown"
    )
    with pytest.raises(ConfigurationError, match="the plan has no way called 'ranges'"):
        plan.way("ranges")
    with pytest.raises(ConfigurationError, match="no way called '': the records come from no storage"):
        plan.way(plan.chosen)
    with pytest.raises(ConfigurationError, match="'disk': only ranges, mirror, blocks"):
        fetched(url).stream().plan().way("disk")


def test_reading_ends_where_it_would_cost_more_than_was_allowed(url):
    prices = yogadl.Prices(per_1000_requests=1000, per_gb=1e9 / 2000)  # a dollar each, and a dollar an image
    ref = fetched(url, limits=yogadl.Limits(price=8.5, prices=prices)).fields("image")
    for number in (100, 700, 1500, 2000):
        ref[number]
    with pytest.raises(
        SpendingError, match=r"4 requests .* 8\.0 kB received, which is the limit: raise Limits.price="
    ):
        ref[2500]


def test_the_command_says_the_same(url, tmp_path, monkeypatch, capsys):
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=0)
    words = ["plan", "set", "1", "-s", url, "--mirror", str(tmp_path), "--shards", "4", "--batch", "16"]
    words += ["--fields", "image,id", "--epochs", "3", "--records-per-s", "100", "--price", "2"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stream = fetched(url).fields("image", "id").stream(shuffle=True, num_shards=4)
    plan = stream.batch(16).plan(epochs=3, records_per_s=100, prices=yogadl.Prices(2))
    assert found["ways"][0] == vars(plan.way("ranges"))
    assert (found["chosen"], found["records"], found["epochs"]) == ("ranges", 751, 3)
    assert main([*words, "--shuffle", "blocks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "set 1: 3,001 records, of which a process reads one in 4."
    assert [line.split()[0] for line in lines[4:]] == ["ranges", "mirror", "blocks"]
    assert main(["plan", "set", "1", "-s", url, "--mirror", str(tmp_path), "--shuffle", "no", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ways"][0]["requests"] < 1000


def planned_by_command(url, mirror, capsys, *options):
    assert main(["plan", "set", "1", "-s", url, "--mirror", str(mirror), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_reads_manifest_and_table_alone_and_says_what_is_missing(url, tmp_path, served, capsys):
    found = planned_by_command(url, tmp_path, capsys)
    kinds = [name.split("/")[1] for name, _ in served]
    assert kinds == ["versions", "tables"]
    assert sum(size for _, size in served) < 20_000
    assert (found["chosen"], found["why"]) == (
        "mirror",
        "fetch downloads all that is missing at once, as it is little",
    )
    served.clear()
    ref = fetched(url, mirror=tmp_path)
    downloaded = [size for name, size in served if name.endswith(".mdb")]
    mirror = next(way for way in found["ways"] if way["name"] == "mirror")
    assert (mirror["requests"], mirror["bytes"]) == (len(downloaded), sum(downloaded))
    assert ref.locality().parts_here == ref.locality().parts
    served.clear()
    assert planned_by_command(url, tmp_path, capsys)["chosen"] == "here"
    assert not any(name.endswith(".mdb") for name, _ in served)


@pytest.mark.parametrize("over", [0, 1])
def test_the_command_says_that_fetch_downloads_up_to_a_size(url, tmp_path, monkeypatch, capsys, over):
    missing = fetched(url).locality().bytes
    set_constants(monkeypatch, REMOTE_OPENING_AT_ONCE_BYTES=missing - over)
    found = planned_by_command(url, tmp_path, capsys, "--shards", "4")
    assert found["chosen"] == ("ranges" if over else "mirror")


def test_a_plan_of_a_part_of_a_mirror_counts_what_is_missing_now(url, tmp_path, served, capsys):
    fetched(url, mirror=tmp_path)
    removed = sorted(tmp_path.rglob("*.mdb"))[::2]
    sizes = [part.stat().st_size for part in removed]
    for part in removed:
        part.unlink()
    served.clear()
    found = planned_by_command(url, tmp_path, capsys)
    assert next(way for way in found["ways"] if way["name"] == "mirror")["bytes"] == sum(sizes)
    assert [name.split("/")[1] for name, _ in served] == ["versions"]
    assert not any(part.exists() for part in removed)
