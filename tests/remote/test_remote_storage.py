"""The contract of storages, kept by buckets in real stores."""

import pytest

import yogadl
from yogadl.testing import StorageContract


class TestBucket(StorageContract):
    @pytest.fixture
    def storage(self, either_place, tmp_path):
        return either_place.storage(mirror=tmp_path / "mirror")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_pictures_in_a_bucket(either_place, tmp_path, workers):
    bucket = either_place.open()
    paths = [f"cat/{number:03}.jpg" for number in range(70)]
    paths += ["dog/old/1.PNG", "dog/2.jpg", "dog/.hidden.jpg", "top.jpg", "dog/notes.txt"]
    for path in paths:
        bucket.put(path, path.encode())
    folder = yogadl.image_folder(either_place.url, **either_place.options)
    assert folder.classes == ["cat", "dog"]
    assert folder.files == [*paths[:70], "dog/2.jpg", "dog/old/1.PNG"]
    bucket.delete("cat/066.jpg")
    storage = yogadl.open_storage(tmp_path / "caches")
    storage.submit(folder, "pets", "1", workers=workers, records=yogadl.RecordOptions(on_error="skip"))
    ref = storage.fetch("pets", "1")
    assert [bytes(record["image"]).decode() for record in ref] == [
        path for path in folder.files if path != "cat/066.jpg"
    ]
    assert [record["file"] for record in ref.metadata["left_out"]["records"]] == ["cat/066.jpg"]
    with pytest.raises(FileNotFoundError, match=r"cat/066\.jpg was deleted"):
        storage.submit(folder, "pets", "2", workers=workers)
