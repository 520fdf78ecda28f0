"""Find out from Linux's list of mounts whether a folder lies on a network file system."""

import os
import re
from pathlib import Path
from typing import Final

# File systems that cache files on each machine without seeing changes of other machines, and whose locks may
# not hold between machines. Lustre, GPFS, BeeGFS and CephFS are left out: these keep both, as a disk does.
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "davfs", "ncpfs", "coda"})
# The name that the kernel appends to "fuse."; most others are local: ntfs-3g, fuse-overlayfs, mergerfs,
# gocryptfs.
_NETWORK_FUSE: Final = frozenset(
    {
        "sshfs", "s3fs", "gcsfuse", "goofys", "rclone", "mount-s3", "mountpoint-s3", "blobfuse", "blobfuse2",
        "glusterfs", "juicefs", "davfs", "davfs2", "smbnetfs", "curlftpfs", "seaweedfs", "alluxio-fuse",
        "cvmfs2", "mfs", "mfsmount", "lizardfs", "ossfs", "cosfs", "obsfs",
    }
)  # fmt: skip
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_MOUNTINFO: Final = Path("/proc/self/mountinfo")


def network_file_system(folder: Path) -> str | None:
    """Return the name of the network file system that a folder lies on, ``None`` for a disk or unknown.

    On systems other than Linux the result is always ``None``.
    """
    name = file_system(folder)
    return name if is_network(name) else None


def file_system(folder: Path) -> str:
    """Return the name of the file system that a folder lies on; empty if it is unknown."""
    try:
        mounts = _MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:
        return ""  # macOS, or a hidden /proc
    return file_system_of(mounts, os.path.realpath(folder))


def is_network(name: str) -> bool:
    """Return whether a file system of this name in mountinfo is read over the network."""
    kind, _, subtype = name.partition(".")
    return name in _NETWORK or (kind in ("fuse", "fuseblk") and subtype in _NETWORK_FUSE)


def file_system_of(mountinfo: str, path: str) -> str:
    """Return the type of the file system that an absolute path lies on; empty if none is found.

    Args:
        mountinfo: The content of ``/proc/self/mountinfo``: see proc(5).
        path: The path, without symbolic links.
    """
    kind_found, longest = "", -1
    for line in mountinfo.splitlines():
        # id, parent, device, root, mount point, options, any number of optional fields, -, type, ...
        fields, _, described = line.partition(" - ")
        columns, kind = fields.split(" "), described.partition(" ")[0]
        if len(columns) < 6 or not kind:
            continue
        # mountinfo has \040 for a space in a name.
        point = _ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), columns[4]).rstrip("/")
        # A later mount over the same folder hides the earlier one.
        if (path == point or path.startswith(point + "/")) and len(point) >= longest:
            kind_found, longest = kind, len(point)
    return kind_found
