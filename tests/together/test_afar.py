"""Out of a bucket, every framework reads what it reads out of a folder, also where it stops and goes on."""

import pytest
from job import Job, records_of
from test_chains import Run
from trainers import FRAMEWORKS, Stop

import yogadl

pytest.importorskip("moto")

RECORDS, WIDTH, BATCH = 101, 250, 8
PART_BYTES, PARTS = 16_000, 7
LIMIT_BYTES = 60_000  # half of the parts
MIRRORS = {
    "cold mirror": lambda folder: {"mirror": str(folder)},
    "no mirror": lambda folder: {"mirror": None},
    "mirror too small": lambda folder: {"mirror": [str(folder), LIMIT_BYTES]},
    "no mirror, compressed": lambda folder: {"mirror": None},
}


@pytest.fixture(scope="session")
def bucket():
    """Return a bucket of a real store, with a proxy before it."""
    from places import s3_place_at
    from store_proxy import proxy_before
    from stores import moto

    with pytest.MonkeyPatch.context() as patch, moto() as url, proxy_before(url) as proxy:
        patch.setenv("NO_PROXY", "127.0.0.1")
        place = s3_place_at(url).through(proxy.url)
        storage = yogadl.open_storage(place.url, **place.options, mirror=None)
        storage.submit(
            records_of(RECORDS, WIDTH), "together", "afar", build=yogadl.BuildOptions(part_bytes=PART_BYTES)
        )
        assert storage.info("together", "afar").parts == PARTS
        storage.recompress("together", "afar", "coded", codec="zstd")
        assert storage.field_sizes("together", "coded")["x"].codec == "zstd"
        yield place, proxy


@pytest.fixture(scope="session")
def near(storage):
    """Return the job that reads the same version out of a folder."""
    yogadl.open_storage(storage).submit(
        records_of(RECORDS, WIDTH), "together", "afar", build=yogadl.BuildOptions(part_bytes=PART_BYTES)
    )
    return Job(str(storage), "together", "afar", seed=5)


@pytest.mark.filterwarnings("ignore")  # of boto3
@pytest.mark.parametrize("mirror", MIRRORS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_epochs_out_of_a_bucket_with_a_kill_between_are_those_out_of_a_folder(
    trainers, bucket, near, tmp_path, framework, mirror
):
    place, proxy = bucket
    proxy.requests.clear()
    options = {**place.options, **MIRRORS[mirror](tmp_path / "mirror")}
    leg = {"storage": place.url, "options": options, "batch_size": BATCH, "workers": 2, "ranks": 1}
    leg["version"] = "coded" if "compressed" in mirror else "afar"
    run = Run(trainers, near)
    run.go_on(framework, {**leg, "epochs": 2}, Stop(6, "kill"))
    assert run.cursor["position"] == 6 * BATCH
    run.go_on(framework, {**leg, "epochs": 2}, Stop(None))
    order = {epoch: near.ids(epoch) for epoch in range(2)}
    assert run.seen == order
    assert all(sorted(ids) == list(range(RECORDS)) for ids in order.values())
    ranges = [request for request in proxy.requests if "Range" in request.headers and ".mdb" in request.name]
    assert len(ranges) > 2 * PARTS  # more than whole parts would take
    if mirror == "mirror too small":
        files = [path for path in (tmp_path / "mirror").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= LIMIT_BYTES
