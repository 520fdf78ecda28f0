"""What is whole in a mirror opens while the store is away, and with offline=True without asking it at all."""

import logging
import pickle
import time

import numpy as np
import pytest
from inside import DatasetKey, set_constants
from processes import Process
from store_proxy import proxy_before

import yogadl
from yogadl.errors import CacheFormatError, DatasetNotFoundError, StorageError
from yogadl.storage import copy

RECORDS = np.arange(3_001) * 3
# It takes some seconds; two minutes are what is waited for a store that is needed.
BOUND_S = 60
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def opened(tmp_path):
    """Open storages of one machine."""

    def open_here(place, **options):
        return place.storage(**{"mirror": tmp_path / "mirror", **options})

    return open_here


def submit(storage, records=RECORDS, name="data"):
    storage.submit(records, name, "1", build=yogadl.BuildOptions(part_bytes=4_096))


def assert_whole(ref):
    assert np.array_equal(ref.gather(range(len(ref))), RECORDS)


def read_all(pickled):
    ref = pickle.loads(pickled)
    return [int(record) for record in ref.gather(range(len(ref)))]


def test_a_version_that_is_here_opens_though_the_store_is_away(either_place, opened, caplog, monkeypatch):
    set_constants(monkeypatch, NEVER_ANSWERED_LIMIT_S=0.5)
    with proxy_before(either_place.options["endpoint_url"]) as proxy:
        place = either_place.through(proxy.url)
        submit(opened(place))
        digest = opened(place).info("data", "1").digest
        opened(place).fetch("data", "1")
    storage = opened(place)
    for pinned in (None, digest):
        begun = time.monotonic()
        assert_whole(storage.fetch("data", "1", digest=pinned))
        assert time.monotonic() - begun < BOUND_S
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in said if "can't be asked whether 'data' version '1' was" in text]) == 1
    begun = time.monotonic()
    with pytest.raises(StorageError, match="can't read"):
        storage.fetch("data", "1", digest="0" * 64)
    with pytest.raises(StorageError, match="this endpoint has never answered"):
        storage.fetch("data", "2")
    assert time.monotonic() - begun < BOUND_S


def test_a_mirror_that_was_filled_opens_though_the_store_is_away(either_place, opened):
    submit(opened(either_place))
    storage = opened(either_place)
    storage._backend.catalogue.opener.fill(storage._backend.catalogue.published(DatasetKey("data", "1")))
    assert_whole(opened(either_place, offline=True).fetch("data", "1", check=True))


def test_offline_asks_nothing_and_what_is_not_here_is_an_error_at_once(broken, opened):
    place, proxy = broken
    submit(opened(place))
    submit(opened(place), name="other")
    opened(place).fetch("data", "1")
    proxy.requests.clear()
    storage = pickle.loads(pickle.dumps(opened(place, offline=True)))
    ref = storage.fetch("data", "1")
    assert_whole(ref)
    assert_whole(pickle.loads(pickle.dumps(ref)))
    assert_whole(storage.cacheable("data", "1")(lambda: RECORDS)())
    for use in (
        lambda: storage.fetch("other", "1"),
        storage.cacheable("other", "1")(lambda: RECORDS),
        lambda: submit(storage),
        lambda: storage.delete("data", "1"),
        storage.datasets,
        storage.prune,
    ):
        with pytest.raises(
            StorageError, match=r"offline=True only versions that are complete in this machine's mirror"
        ):
            use()
    assert proxy.requests == []


def test_offline_half_a_version_is_an_error_at_once(either_place, opened):
    submit(opened(either_place))
    storage = opened(either_place)
    storage.fetch("data", "1")
    next(
        (storage._backend.catalogue.opener.mirror.location.caches.root / "data" / "parts").glob("*.mdb")
    ).unlink()
    with pytest.raises(StorageError, match="offline=True"):
        opened(either_place, offline=True).fetch("data", "1")


def test_a_spawned_worker_asks_nothing_of_the_store(broken, opened):
    place, proxy = broken
    submit(opened(place))
    pickled = pickle.dumps(opened(place).fetch("data", "1"))
    proxy.requests.clear()
    with Process(read_all, pickled) as worker:
        assert worker.result() == RECORDS.tolist()
    assert proxy.requests == []


def test_a_worker_reads_what_its_parent_opened_though_it_was_replaced_since(either_place, opened, tmp_path):
    submit(opened(either_place))
    pickled = pickle.dumps(opened(either_place).fetch("data", "1"))
    submit(opened(either_place, mirror=tmp_path / "of another machine"), RECORDS[:7])
    assert len(opened(either_place).fetch("data", "1")) == 7
    with Process(read_all, pickled) as worker:
        assert worker.result() == RECORDS.tolist()
    assert len(opened(either_place, offline=True).fetch("data", "1")) == 7  # the newest that was seen


def test_what_was_replaced_or_deleted_is_not_served_once_the_store_has_said_so(
    either_place, opened, tmp_path
):
    elsewhere = opened(either_place, mirror=tmp_path / "of another machine")
    submit(elsewhere)
    assert_whole(opened(either_place).fetch("data", "1"))
    submit(elsewhere, RECORDS[:7])
    assert opened(either_place).info("data", "1").records == 7
    with pytest.raises(StorageError, match="offline=True"):
        opened(either_place, offline=True).fetch("data", "1")
    assert len(opened(either_place).fetch("data", "1")) == 7
    elsewhere.delete("data", "1")
    with pytest.raises(DatasetNotFoundError):
        opened(either_place).fetch("data", "1")
    with pytest.raises(StorageError, match="offline=True"):
        opened(either_place, offline=True).fetch("data", "1")


def test_what_was_brought_back_is_served_if_it_is_here(either_place, opened, tmp_path):
    elsewhere, folder = opened(either_place, mirror=tmp_path / "of another machine"), tmp_path / "folder"
    submit(yogadl.open_storage(folder))
    copy(yogadl.open_storage(folder), elsewhere, "data", "1")
    assert_whole(opened(either_place).fetch("data", "1"))
    submit(elsewhere, RECORDS[:7])
    assert len(opened(either_place).fetch("data", "1")) == 7
    copy(yogadl.open_storage(folder), elsewhere, "data", "1", replaces=True)
    assert opened(either_place).info("data", "1").records == len(RECORDS)
    assert_whole(opened(either_place, offline=True).fetch("data", "1"))


def test_what_was_replaced_from_here_is_not_served(either_place, opened):
    submit(opened(either_place))
    assert_whole(opened(either_place).fetch("data", "1"))
    submit(opened(either_place), RECORDS[:7])
    with pytest.raises(StorageError, match="offline=True"):
        opened(either_place, offline=True).fetch("data", "1")


def test_buckets_of_one_name_in_two_stores_are_kept_apart(either_place, opened):
    submit(opened(either_place))
    opened(either_place).fetch("data", "1")
    with pytest.raises(StorageError, match="offline=True"):
        opened(either_place.through(NOWHERE), offline=True).fetch("data", "1")


def test_a_manifest_that_was_damaged_here_is_not_served(either_place, opened):
    submit(opened(either_place))
    storage = opened(either_place)
    storage.fetch("data", "1")
    folder = storage._backend.catalogue.opener.mirror.location.caches.root
    [kept] = (folder / "data" / "tables").glob("*.json")
    kept.write_bytes(kept.read_bytes().replace(b"3001", b"3000"))
    with pytest.raises(StorageError, match="offline=True"):
        opened(either_place, offline=True).fetch("data", "1")
    assert_whole(opened(either_place).fetch("data", "1"))


def test_a_manifest_goes_with_its_parts(either_place, opened, tmp_path):
    elsewhere = opened(either_place, mirror=tmp_path / "of another machine")
    submit(elsewhere)
    submit(elsewhere, name="other")
    opened(either_place).fetch("data", "1")
    caches = tmp_path / "mirror" / "caches"
    size_bytes = sum(path.stat().st_size for path in caches.rglob("*.mdb"))
    [table] = caches.rglob("*.parts")
    # Room for one of them, so that the other goes to its last file.
    small = yogadl.Mirror(tmp_path / "mirror", limit=size_bytes + 3 * table.stat().st_size // 2)
    opened(either_place, mirror=small).fetch("other", "1")
    assert not list(caches.glob("data/tables/*"))
    assert len(list(caches.glob("other/tables/*.json"))) == 1


def test_a_pinned_digest_is_compared_offline(either_place, opened):
    submit(opened(either_place))
    digest = opened(either_place).info("data", "1").digest
    opened(either_place).fetch("data", "1")
    offline = opened(either_place, offline=True)
    assert_whole(offline.fetch("data", "1", digest=digest))
    with pytest.raises((StorageError, CacheFormatError), match=r"offline=True|digest"):
        offline.fetch("data", "1", digest="0" * 64)


def test_a_folder_is_never_offline(tmp_path):
    with pytest.raises(yogadl.errors.ConfigurationError, match="offline: no option of the folder"):
        yogadl.open_storage(tmp_path, offline=True)
