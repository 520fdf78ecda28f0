"""A compressed value goes the way that docs/architecture.md says."""

from walks import documented, of_a_batch

from yogadl import open_storage


def test_a_compressed_value_goes_the_documented_way(tmp_path, monkeypatch):
    storage = open_storage(tmp_path)
    records = ({"text": b"y" * (number % 500 + 100)} for number in range(3000))
    storage.submit(records, "texts", "1", codec="zstd")
    walk = of_a_batch(monkeypatch, storage.fetch("texts", "1").stream(shuffle=True).batch(32))
    assert set(walk.modules) == set(documented("A compressed value")), str(walk)
