"""A storage on a network file system: found out, said, and read without mapping its files."""

import pickle
import sys
import warnings

import numpy as np
import pytest
from inside import _folder, file_system_of, is_network, network_file_system, set_constants
from inside import rows as rows_module

import yogadl
from yogadl.storage import LFSConfigurations, LFSStorage

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 0:40 / /home rw shared:3 master:1 - nfs4 server:/home rw,vers=4.2,hard
32 31 0:41 / /home/local rw - xfs /dev/sdb rw
33 27 0:42 / /mnt/two\\040words rw shared:5 - cifs //server/share rw
34 27 0:43 / /mnt/b rw - fuse.sshfs me@host:/ rw
35 27 0:44 / /mnt/two rw - fuse.fuse-overlayfs fuse-overlayfs rw
36 27 0:45 / /auto rw - autofs systemd-1 rw
37 36 0:46 / /auto rw - nfs server:/auto rw
38 27 0:47 / /ends\\134slash rw - smb3 //s/x rw
not a line at all
39 27 - nothing
40 27 0:48 / /odd rw -
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "ext4"),
        ("/data", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/caches", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/local", "xfs"),
        ("/home/local/caches", "xfs"),
        ("/mnt/two words/x", "cifs"),
        ("/mnt/two", "fuse.fuse-overlayfs"),
        ("/mnt/b/c", "fuse.sshfs"),
        ("/mnt", "ext4"),
        ("/auto/x", "nfs"),
        ("/ends\\slash/x", "smb3"),
        ("/proc/self", "proc"),
        ("/odd", "ext4"),
    ],
)
def test_the_mount_with_the_longest_path_counts_and_of_two_the_later(path, expected):
    assert file_system_of(MOUNTS, path) == expected


NETWORK = ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs"]
LOCAL = ["", "ext4", "tmpfs", "overlay", "fuse", "fuseblk", "fuse.mergerfs", "nfsd", "sshfs", "lustre"]


def test_what_is_read_over_the_network():
    assert [name for name in (*NETWORK, *LOCAL) if is_network(name)] == NETWORK
    assert file_system_of("", "/data") == ""  # without mounts nothing is known


def test_where_linux_does_not_say_nothing_is_known(tmp_path, monkeypatch):
    set_constants(monkeypatch, MOUNTINFO=tmp_path / "absent")
    assert network_file_system(tmp_path) is None


@pytest.fixture
def mount(tmp_path, monkeypatch):
    """Return what makes tmp_path look as if it were mounted so."""

    def mount(kind):
        path = tmp_path / "mountinfo"
        path.write_text(MOUNTS + f"50 27 0:50 / {tmp_path.resolve()} rw - {kind} server:/x rw\n")
        set_constants(monkeypatch, MOUNTINFO=path)

    return mount


def test_a_link_counts_by_where_it_leads(tmp_path, mount):
    mount("nfs4")
    (tmp_path / "real").mkdir()
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path / "real")
    try:
        assert network_file_system(link) == "nfs4"
        assert network_file_system(link / "not" / "there" / "yet") == "nfs4"
    finally:
        link.unlink()


def test_a_disk_is_opened_without_a_word(tmp_path, mount):
    mount("ext4")
    yogadl.open_storage(tmp_path / "caches")


@pytest.mark.parametrize("opens", [yogadl.open_storage, lambda path: LFSStorage(LFSConfigurations(path))])
def test_a_network_file_system_is_named_in_one_warning_that_says_what_to_use(tmp_path, mount, opens):
    mount("nfs4")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        storage = opens(tmp_path / "caches")
        storage.submit(np.arange(10), "d", "1")
        ref = pickle.loads(pickle.dumps(storage.fetch("d", "1")))
        assert ref.gather([3, 1]).tolist() == [3, 1]
    (warning,) = caught
    assert warning.category is UserWarning
    assert warning.filename == __file__
    text = str(warning.message)
    assert str(tmp_path / "caches") in text
    assert "nfs4" in text
    assert "local disk" in text


@pytest.mark.parametrize(("kind", "maps"), [("nfs", False), ("fuse.gcsfuse", False), ("xfs", True)])
def test_files_on_the_network_are_never_mapped(tmp_path, mount, monkeypatch, kind, maps):
    storage = yogadl.open_storage(tmp_path / "caches")
    records = [{"n": i, "text": "x" * (i % 5)} for i in range(100)]
    storage.submit(records, "d", "1", build=yogadl.BuildOptions(part_bytes=500))
    mount(kind)
    mapped = []
    original = rows_module.AddressRange

    def window(sizes, *args):
        mapped.append(len(sizes) > 0)
        return original(sizes, *args)

    monkeypatch.setattr(rows_module, "AddressRange", window)
    ref = storage.fetch("d", "1")
    if not maps:
        monkeypatch.setattr("mmap.mmap", lambda *_, **__: pytest.fail("a file was mapped"))
    batch = ref.gather([99, 3, 3, 50])
    assert batch["n"].tolist() == [99, 3, 3, 50]
    assert [len(text) for text in batch["text"]] == [4, 3, 3, 0]
    assert list(map(len, ref.gather(range(100))["text"])) == [i % 5 for i in range(100)]
    assert mapped == [maps]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says")
def test_this_very_machine_has_mounts(tmp_path):
    assert file_system_of(_folder._MOUNTINFO.read_text(), str(tmp_path.resolve())) != ""
