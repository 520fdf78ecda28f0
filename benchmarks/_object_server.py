"""Serve a folder's files as an S3 store would, as fast as the loopback carries them: reads only.

``python _object_server.py FOLDER [PORT [SECONDS [RATE]]]`` prints where it answers, so long after it was
asked, and sends so many bytes a second to all together, or as many as it can. What
the stores of the tests do for a get takes longer than the transfer that is measured, so this one sends files
by sendfile, from a process of its own. What it has answered so far is at ``/-/counted``: requests, and bytes.
"""

import json
import os
import re
import sys
import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

_PIECE_BYTES = 2**16  # sent at a time where the rate is limited


class Handler(BaseHTTPRequestHandler):
    """Answer GET, of a whole object or of one range, HEAD, and the list of a bucket; and nothing else."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder = Path()
    delay_s = 0.0
    bytes_per_s = 0.0
    free_at: ClassVar = [0.0]  # when what was sent so far is through
    counted: ClassVar = [0, 0]
    counting = threading.Lock()

    def do_HEAD(self) -> None:
        """Say what is known of an object."""
        self._answer()

    def do_GET(self) -> None:
        """Send an object or a range of it."""
        self._answer()

    def _answer(self) -> None:
        if self.path == "/-/counted":
            content = json.dumps(self.counted).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self._count(1, 0)
        time.sleep(self.delay_s)
        name, _, query = self.path.partition("?")
        path = self.folder / unquote(name).lstrip("/")
        if path.is_dir():
            self._list(path, parse_qs(query).get("prefix", [""])[0])
            return
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        try:
            self._send(descriptor)
        finally:
            os.close(descriptor)

    def _list(self, bucket: Path, prefix: str) -> None:
        """Send the names of a bucket's objects, all in one page, as ListObjectsV2 does."""
        files = {str(path.relative_to(bucket)): path for path in bucket.rglob("*") if path.is_file()}
        objects = ""
        for name in sorted(name for name in files if name.startswith(prefix)):
            found = files[name].stat()
            changed = datetime.fromtimestamp(found.st_mtime, UTC).isoformat()
            objects += (
                f"<Contents><Key>{escape(name)}</Key><Size>{found.st_size}</Size>"
                f"<ETag>{_tag(found)}</ETag><LastModified>{changed}</LastModified></Contents>"
            )
        content = f"<ListBucketResult>{objects}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        start, stop = 0, found.st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted:
            start, stop = int(wanted[1]), min(stop, int(wanted[2] or stop) + 1)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(stop - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{found.st_size}")
        self.send_header("ETag", _tag(found))
        self.send_header("Last-Modified", formatdate(found.st_mtime, usegmt=True))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        self.wfile.flush()
        if self.command == "GET":
            self._count(0, stop - start)
            while start < stop:
                end = min(stop, start + _PIECE_BYTES) if self.bytes_per_s else stop
                self._wait_for(end - start)
                while start < end:
                    start += os.sendfile(self.connection.fileno(), descriptor, start, end - start)

    def _wait_for(self, size_bytes: int) -> None:
        """Wait until the link has carried what was sent before."""
        if self.bytes_per_s:
            with self.counting:
                begin = max(time.monotonic(), self.free_at[0])
                self.free_at[0] = begin + size_bytes / self.bytes_per_s
            time.sleep(max(0.0, self.free_at[0] - time.monotonic()))

    def _count(self, requests: int, size_bytes: int) -> None:
        with self.counting:
            self.counted[0] += requests
            self.counted[1] += size_bytes

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of what is answered."""


def _tag(found: os.stat_result) -> str:
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}"'


class _Server(ThreadingHTTPServer):
    """A server with room for all connections that begin at once: one that is dropped waits for seconds."""

    request_queue_size = 1024


def main() -> None:
    """Serve until killed."""
    folder, port, delay_s, bytes_per_s = (*sys.argv[1:], *("0", "0", "0")[len(sys.argv) - 2 :])
    Handler.folder, Handler.delay_s, Handler.bytes_per_s = Path(folder), float(delay_s), float(bytes_per_s)
    server = _Server(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
