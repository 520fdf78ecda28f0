"""Tar files of small groups of members, and a server of a bucket that is far away."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from data import Data

BUCKET: Final = "raw"
A_SHARD: Final = 500
DELAY_S: Final = 0.02
_SERVER: Final = Path(__file__).resolve().parents[2] / "_object_server.py"


def write_tars(data: Data, folder: Path) -> None:
    """Write what webdataset's ShardWriter would: a member for each field, named by record and field."""
    bucket = folder / BUCKET
    bucket.mkdir()
    for begin in range(0, data.records, A_SHARD):
        with tarfile.open(bucket / f"{begin // A_SHARD:06d}.tar", "w") as shard:
            for index in range(begin, min(begin + A_SHARD, data.records)):
                for name, value in data.record(index).items():
                    raw = value if isinstance(value, bytes) else value.tobytes()
                    member = tarfile.TarInfo(f"{index:08d}.{name}.bin")
                    member.size = len(raw)
                    shard.addfile(member, io.BytesIO(raw))


def names(folder: Path) -> list[str]:
    """Return the names of the shards, in their order."""
    return sorted(path.name for path in (folder / BUCKET).iterdir())


def served(folder: Path) -> str:
    """Serve a folder's buckets, each answer so late; the server ends with the process group."""
    command = [sys.executable, str(_SERVER), str(folder), "0", str(DELAY_S)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server.stdout.readline().strip()
