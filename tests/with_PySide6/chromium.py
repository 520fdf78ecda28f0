"""Look at a file in a Chromium, Qt's or this machine's, by the protocol of its developer tools."""

import base64
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.client import connect

WAIT_S = 60
FLAGS = ["--no-sandbox", "--disable-gpu"]  # root has no sandbox, and few machines that run tests have a GPU
WINDOW = Path(__file__).with_name("qt_window.py")


class NoBrowserError(Exception):
    """A browser does not start here; the message says why."""


@contextmanager
def open_qt() -> Iterator["Browser"]:
    """Start the Chromium that comes with PySide6."""
    with socket.socket() as free:  # it takes no port 0
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": " ".join(FLAGS),
        "QTWEBENGINE_REMOTE_DEBUGGING": where,
    }
    with _started([sys.executable, str(WINDOW)], os.environ | environment) as browser:
        yield browser


@contextmanager
def open_installed(profile: Path) -> Iterator["Browser"]:
    """Start the Chromium that is found on the PATH."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise NoBrowserError("there is no chromium on the PATH")
    options = [
        *FLAGS,
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    with _started([path, *options], dict(os.environ)) as browser:
        yield browser


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator["Browser"]:
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            found = re.match(r"DevTools listening on (ws://\S+)", line)
            if found:
                break
        else:
            raise NoBrowserError(
                f"{Path(command[-1]).name if len(command) == 2 else command[0]}: {''.join(said[-3:])}"
            )
        # Messages are whole pages; whoever says nothing for so long hangs.
        with connect(found[1], max_size=None, open_timeout=WAIT_S) as connection:
            yield Browser(connection)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Browser:
    """One page of a browser."""

    def __init__(self, connection):
        self._connection = connection
        self._calls = 0
        self._session = {}
        self._events = []
        self._call("Target.setDiscoverTargets", discover=True)
        page = self._wait_for("Target.targetCreated", lambda found: found["targetInfo"]["type"] == "page")
        target = page["targetInfo"]["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self._call(f"{domain}.enable")
        self._call("Page.setLifecycleEventsEnabled", enabled=True)

    def open(self, path, *, width=1200, dark=False, media="screen"):
        """Load a file, and wait until all of it is there."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media=media, features=[colours])
        self._events.clear()
        loader = self._call("Page.navigate", url=path.as_uri())["loaderId"]
        self._wait_for(
            "Page.lifecycleEvent", lambda found: (found["loaderId"], found["name"]) == (loader, "load")
        )

    def run(self, script):
        """Return what a script returns, as JSON would have it."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self):
        """Return the addresses that were asked for since the file was opened."""
        return [found["request"]["url"] for found in self._since("Network.requestWillBeSent")]

    def complaints(self):
        """Return what the browser has to say: errors, warnings, dialogs."""
        self.run("0")  # what came before that is here
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Page.javascriptDialogOpening")
        return [found["entry"]["text"] for found in self._since("Log.entryAdded")] + [
            found for kind in kinds for found in self._since(kind)
        ]

    def colour(self, x, y):
        """Return red, green and blue of a pixel as it is drawn."""
        clip = {"x": x, "y": y, "width": 1, "height": 1, "scale": 1}
        png = base64.b64decode(self._call("Page.captureScreenshot", clip=clip)["data"])
        content, place = b"", 8
        while place < len(png):
            (size,) = struct.unpack(">I", png[place : place + 4])
            if png[place + 4 : place + 8] == b"IDAT":
                content += png[place + 8 : place + 8 + size]
            place += 12 + size
        return tuple(zlib.decompress(content)[1:4])  # of the first pixel no filter changes any

    def named(self, role):
        """Return what those are told who don't see elements of a role: the name of each."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            node.get("name", {}).get("value", "")
            for node in nodes
            if not node["ignored"] and node["role"]["value"] == role
        ]

    def _since(self, method):
        return [event["params"] for event in self._events if event["method"] == method]

    def _wait_for(self, method, is_meant):
        while not any(map(is_meant, self._since(method))):
            self._events.append(self._received())
        return next(filter(is_meant, self._since(method)))

    def _call(self, method, **parameters):
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        self._connection.send(json.dumps(message | self._session))
        while True:
            found = self._received()
            if found.get("id") == self._calls:
                assert "error" not in found, (method, found)
                return found["result"]
            self._events.append(found)

    def _received(self):
        return json.loads(self._connection.recv(timeout=WAIT_S))
