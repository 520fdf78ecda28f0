"""Folders of pictures as a source: `yogadl.image_folder`."""

import os
import pickle

import numpy as np
import pytest
from command import run_command

import yogadl
from yogadl.errors import ConfigurationError


def fill(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(path.encode())
    return root


PATHS = ["cat/2.jpg", "cat/1.png", "dog/old/a.JPG", "dog/b.jpeg", "cat-like/x.webp", "dog/old.jpg"]
SORTED = ["cat/1.png", "cat/2.jpg", "cat-like/x.webp", "dog/b.jpeg", "dog/old.jpg", "dog/old/a.JPG"]


@pytest.fixture
def photos(tmp_path):
    return fill(tmp_path / "photos", *PATHS)


def files(records):
    return [str(record["file"]) for record in records]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.usefixtures("forked_workers")
def test_records_are_the_files_by_class_and_path(storage, photos, workers, on_error):
    storage.submit(
        yogadl.image_folder(photos),
        "photos",
        "1",
        workers=workers,
        records=yogadl.RecordOptions(on_error=on_error),
    )
    ref = storage.fetch("photos", "1")
    assert files(ref) == SORTED
    assert [bytes(record["image"]).decode() for record in ref] == SORTED
    assert [int(record["label"]) for record in ref] == [0, 0, 1, 2, 2, 2]
    assert ref.metadata == {"classes": ["cat", "cat-like", "dog"]}
    assert ref.spec.fields[1].leaf == yogadl.Leaf("int64", ())


def test_it_is_a_sequence_of_records(photos):
    folder = yogadl.image_folder(str(photos))
    assert repr(folder) == f"<yogadl.image_folder {str(photos)!r}: 6 files of 3 classes>"
    assert len(folder) == 6
    assert folder[5] == {"image": b"dog/old/a.JPG", "label": 2, "file": "dog/old/a.JPG"}
    assert (folder.classes, folder.files) == (["cat", "cat-like", "dog"], SORTED)
    assert files(pickle.loads(pickle.dumps(folder))) == SORTED
    ref = yogadl.from_source(folder)
    assert files(ref) == SORTED
    train, test = ref.split(0.5, key="file")
    assert sorted(files(train) + files(test)) == sorted(SORTED)


def test_a_folder_given_as_a_url_is_the_same(storage, photos):
    folder = yogadl.image_folder(photos.as_uri())
    assert files(folder) == SORTED
    storage.submit(folder, "photos", "1", workers=2)
    storage.submit(yogadl.image_folder(photos), "photos", "2")
    assert storage.fetch("photos", "1").fingerprint == storage.fetch("photos", "2").fingerprint
    (photos / "cat/1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"cat/1.png was deleted since"):
        folder[0]
    storage.submit(folder, "photos", "3", records=yogadl.RecordOptions(on_error="skip"))
    [left_out] = storage.fetch("photos", "3").metadata["left_out"]["records"]
    assert (left_out["index"], left_out["file"]) == (0, "cat/1.png")


def test_what_does_not_count(photos):
    fill(
        photos, "top.jpg", ".hidden/a.jpg", "cat/.a.jpg", "cat/._1.jpg", "cat/.thumbs/b.jpg", "cat/notes.txt"
    )
    assert files(yogadl.image_folder(photos)) == SORTED
    assert files(yogadl.image_folder(photos.as_uri())) == SORTED


def test_links_are_followed(photos, tmp_path):
    (photos / "emu").symlink_to(fill(tmp_path / "away", "deep/z.png"))
    (photos / "cat/9.jpg").symlink_to(photos / "dog/b.jpeg")
    found = yogadl.image_folder(photos)
    assert found.classes == ["cat", "cat-like", "dog", "emu"]
    assert {"emu/deep/z.png", "cat/9.jpg"} <= set(found.files)


def test_a_link_to_nothing_is_an_error_or_left_out(storage, photos):
    (photos / "cat/3.jpg").symlink_to(photos / "nowhere")
    with pytest.raises(FileNotFoundError) as caught:
        storage.submit(yogadl.image_folder(photos), "photos", "1")
    assert "cat/3.jpg" in caught.value.__notes__[0]
    storage.submit(yogadl.image_folder(photos), "photos", "1", records=yogadl.RecordOptions(on_error="skip"))
    assert files(storage.fetch("photos", "1")) == SORTED


def test_a_class_whose_link_leads_to_nothing_is_an_error_not_fewer_classes(photos, tmp_path):
    (tmp_path / "disk").mkdir()
    (photos / "cow").symlink_to(tmp_path / "disk")
    (tmp_path / "disk/1.jpg").write_bytes(b"cow")
    assert yogadl.image_folder(photos).classes[1:3] == ["cat-like", "cow"]
    (tmp_path / "disk").rename(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="cow is a link to what is not there"):
        yogadl.image_folder(photos)


def test_extensions_and_classes_are_chosen(photos):
    extensions = [".jpg", ".webp", ".PNG"]
    assert files(yogadl.image_folder(photos, extensions=extensions)) == [f for f in SORTED if "jpeg" not in f]
    found = yogadl.image_folder(photos, classes=["dog", "emu", "cat", "cat-like"])
    assert [(record["label"], record["file"]) for record in found] == [
        (0, "dog/b.jpeg"), (0, "dog/old.jpg"), (0, "dog/old/a.JPG"), (2, "cat/1.png"), (2, "cat/2.jpg"),
        (3, "cat-like/x.webp"),
    ]  # fmt: skip
    (photos / "emu").mkdir()
    assert len(yogadl.image_folder(photos, classes=["cat", "cat-like", "dog", "emu"])) == 6


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        ("", {"extensions": ".jpg"}, "there is no picture in 'cat-like'"),
        *(("", {"extensions": bad}, "extensions are such as") for bad in ("jpg", [], ["."], [""], [3])),
        ("", {"classes": ["dog", "cat"]}, "has 'cat-like', which classes= lacks"),
        ("", {"classes": ["dog", "cat", "cat-like", "dog"]}, "has a name twice"),
        *(("", {"classes": bad}, "classes are the names") for bad in ("dog", [1])),
        *((place, {}, "there is no folder") for place in ("../none", "cat/1.png")),
        *((place, {}, "has no folder with pictures") for place in ("../empty", "cat")),
        ("../with an empty one", {}, "there is no picture in 'emu'"),
        ("", {"endpoint_url": "x"}, "endpoint_url: no option of a folder"),
    ],
)
def test_a_folder_without_pictures_and_wrong_options_are_refused(photos, tmp_path, place, options, says):
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "with an empty one", "cat/1.png")
    (tmp_path / "with an empty one/emu").mkdir()
    with pytest.raises(ConfigurationError, match=says):
        yogadl.image_folder(photos / place, **options)


def test_what_is_no_regular_file_does_not_count(photos):
    os.mkfifo(photos / "cat/pipe.jpg")
    (photos / "cat/folder.jpg").mkdir()
    assert files(yogadl.image_folder(photos)) == SORTED


@pytest.mark.skipif(os.name != "posix", reason="names are bytes there")
def test_a_name_that_is_no_utf_8_is_refused(photos):
    os.close(os.open(os.fsencode(photos) + b"/cat/\xff.jpg", os.O_CREAT | os.O_WRONLY))
    with pytest.raises(ConfigurationError, match="is no UTF-8: rename"):
        yogadl.image_folder(photos)


def test_an_appended_folder_must_have_the_same_classes(storage, photos, tmp_path):
    storage.submit(
        yogadl.image_folder(photos), "photos", "1", build=yogadl.BuildOptions(metadata={"by": "us"})
    )
    assert storage.fetch("photos", "1").metadata == {"by": "us", "classes": ["cat", "cat-like", "dog"]}
    more = fill(tmp_path / "more", "dog/c.jpg")
    other = yogadl.image_folder(more)
    with pytest.raises(ConfigurationError, match="'classes' of these records is"):
        storage.append(
            other, "photos", "2", base_version="1", build=yogadl.BuildOptions(progress=pytest.fail)
        )  # before any is read
    classes = storage.fetch("photos", "1").metadata["classes"]
    storage.append(yogadl.image_folder(more, classes=classes), "photos", "2", base_version="1")
    found = storage.fetch("photos", "2")
    assert found.metadata == {"by": "us", "classes": classes}
    assert int(found[6]["label"]) == 2
    with pytest.raises(ConfigurationError, match="'classes' of these records is"):
        storage.submit(
            yogadl.image_folder(photos), "photos", "3", build=yogadl.BuildOptions(metadata={"classes": ["a"]})
        )


def test_tasks_write_it_too(storage, photos):
    build = storage.begin("photos", "1", source=yogadl.image_folder(photos), partitions=4)
    for partition in range(4):
        pickle.loads(pickle.dumps(build)).write(partition)
    build.commit()
    assert files(storage.fetch("photos", "1")) == SORTED
    assert storage.fetch("photos", "1").metadata["classes"] == ["cat", "cat-like", "dog"]


def test_a_changed_file_is_read_again_by_a_build_that_continues(storage, photos):
    version = yogadl.image_folder(photos).__yogadl_version__
    assert yogadl.image_folder(photos).__yogadl_version__ == version
    (photos / "cat/1.png").write_bytes(b"other")
    assert yogadl.image_folder(photos).__yogadl_version__ != version


def test_the_command_builds_from_a_folder(storage, photos, capsys):
    (photos / "cat/3.jpg").symlink_to(photos / "nowhere")
    words = "build", str(photos), "photos", "1", "-s", storage.location
    assert "cat/3.jpg" in run_command(capsys, *words).err
    ended = run_command(capsys, *words, "--on-error", "skip", "--workers", "2", "--metadata", "by=us")
    assert ended.code == 0
    found = storage.fetch("photos", "1")
    assert files(found) == SORTED
    assert (found.metadata["by"], found.metadata["left_out"]["count"]) == ("us", 1)
    ended = run_command(capsys, "build", str(photos), "photos", "auto", "-s", storage.location)
    assert "auto is made of code and arguments, not of files" in ended.err
    words = "--arg", "classes=" + str(["dog", "cat", "cat-like"]).replace("'", '"'), "--on-error", "skip"
    assert run_command(capsys, "build", photos.as_uri(), "p", "1", "-s", storage.location, *words).code == 0
    assert storage.fetch("p", "1").metadata["classes"] == ["dog", "cat", "cat-like"]


def test_pictures_are_read_as_a_stream_in_any_order(photos):
    batch = next(iter(yogadl.from_source(yogadl.image_folder(photos)).stream(shuffle=True).batch(6)))
    assert sorted(batch["file"]) == sorted(SORTED)
    assert np.bincount(batch["label"]).tolist() == [2, 1, 3]
