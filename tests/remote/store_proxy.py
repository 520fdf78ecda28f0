"""Stand between a client and a store, and break what passes, as networks and stores do.

A `Rule` says which requests, and what happens to them. Rules are asked in order; the first that takes a
request decides, and what none takes passes as it is.
"""

import contextlib
import http.client
import http.server
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import unquote, urlsplit

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends a reset
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive"}
_PATIENCE_S = 120


@dataclass(frozen=True)
class Request:
    """A request as it came."""

    method: str
    path: str
    headers: Message
    size_bytes: int

    @property
    def name(self) -> str:
        """The path as it is without escapes, of which clients make different numbers."""
        return unquote(self.path)

    @property
    def is_write(self) -> bool:
        return self.method in ("PUT", "POST", "PATCH")

    @property
    def is_conditional_write(self) -> bool:
        """Whether it writes only if there is nothing, in the words of either store."""
        return self.is_write and ("If-None-Match" in self.headers or "ifGenerationMatch=0" in self.path)

    @property
    def is_of_bytes(self) -> bool:
        """Whether it asks for an object's bytes, in the words of either store."""
        is_list = "list-type" in self.path or self.path.partition("?")[0].endswith("/o")
        is_google = self.path.startswith(("/storage/", "/download/"))
        return self.method == "GET" and not is_list and ("alt=media" in self.path or not is_google)


@dataclass(frozen=True)
class Answer:
    """What the store answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Rule:
    """What happens to some requests.

    Attributes:
        takes: Which.
        happens: What; called with the request's `Exchange`.
        times: To how many of them; the rest pass.
    """

    takes: Callable[[Request], bool]
    happens: Callable[["Exchange"], None]
    times: float = float("inf")


@dataclass
class StoreProxy:
    """A running proxy.

    Attributes:
        url: Where clients find it.
        rules: What it breaks; may be changed while it runs.
        requests: All that came.
        answering: How many of them are being answered.
    """

    upstream: str
    url: str = ""
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    answering: int = 0
    _deciding: Any = field(default_factory=threading.Lock)

    def breaks(
        self,
        takes: Callable[[Request], bool],
        happens: Callable[["Exchange"], None],
        times: float = float("inf"),
    ) -> None:
        """Add a rule."""
        self.rules.append(Rule(takes, happens, times))

    def decide(self, request: Request) -> Callable[["Exchange"], None]:
        """Return what happens to a request."""
        with self._deciding:
            self.requests.append(request)
            self.answering += 1
            for rule in self.rules:
                if rule.times > 0 and rule.takes(request):
                    rule.times -= 1
                    return rule.happens
        return Exchange.passes

    def is_answered(self) -> None:
        """Note that a request was answered."""
        with self._deciding:
            self.answering -= 1


@dataclass
class Exchange:
    """One request on its way, and what can be done to it."""

    request: Request
    body: bytes
    handler: "_Handler"

    def ask(self) -> Answer:
        """Let the store do it, and return its answer."""
        return self.handler.ask(self.request, self.body)

    def send(self, answer: Answer, until: int | None = None) -> None:
        """Send the answer to the client, or its head and that much of its body."""
        self.handler.send(answer, until)

    def passes(self) -> None:
        """Let it pass as it is."""
        self.send(self.ask())

    def reset(self) -> None:
        """End the client's connection in the midst."""
        self.handler.end(is_reset=True)

    def close(self) -> None:
        """End the client's connection as if all was said."""
        self.handler.end(is_reset=False)

    def stall(self) -> None:
        """Say nothing until the client goes."""
        self.handler.connection.settimeout(_PATIENCE_S)
        with contextlib.suppress(OSError):
            self.handler.connection.recv(1)
        self.handler.end(is_reset=True)

    def refuse(self, status: int, code: str, message: str = "said the test") -> None:
        """Answer with an error of either store's form, without asking the store."""
        if self.request.path.startswith(("/storage/", "/upload/", "/download/", "/b/")):
            said = {"error": {"code": status, "message": f"{code}: {message}", "errors": [{"reason": code}]}}
            body, kind = json.dumps(said).encode(), "application/json"
        else:
            body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            kind = "application/xml"
        self.answer(status, body, kind)

    def answer(self, status: int, body: bytes, kind: str) -> None:
        """Answer so, without asking the store."""
        sent = b"" if self.request.method == "HEAD" else body
        self.send(Answer(status, [("Content-Type", kind), ("Content-Length", str(len(body)))], sent))


def resets(after: int | None = None) -> Callable[[Exchange], None]:
    """End the connection by a reset: before the answer, or `after` so many bytes of its body."""

    def happens(exchange: Exchange) -> None:
        if after is not None:
            exchange.send(exchange.ask(), after)
        exchange.reset()

    return happens


def cuts(after: int) -> Callable[[Exchange], None]:
    """End the connection after some bytes of the body, as if they were all."""

    def happens(exchange: Exchange) -> None:
        exchange.send(exchange.ask(), after)
        exchange.close()

    return happens


def stalls(after: int | None = None) -> Callable[[Exchange], None]:
    """Go silent: before the answer, or `after` so many bytes of its body."""

    def happens(exchange: Exchange) -> None:
        if after is not None:
            exchange.send(exchange.ask(), after)
        exchange.stall()

    return happens


def loses_the_answer(exchange: Exchange) -> None:
    """Let the store do it, and keep its answer from the client."""
    exchange.ask()
    exchange.reset()


def refuses(status: int, code: str, message: str = "said the test") -> Callable[[Exchange], None]:
    """Answer with an error."""
    return lambda exchange: exchange.refuse(status, code, message)


@contextlib.contextmanager
def proxy_before(upstream: str, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[StoreProxy]:
    """Run a proxy before a store, on a free port if none is given; clients may name it as theirs, too."""
    proxy = StoreProxy(upstream)

    class Handler(_Handler):
        pass

    Handler.proxy = proxy
    server = _Server(("127.0.0.1", port), Handler)
    proxy.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is what many tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: StoreProxy
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S

    def _handle(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:
            self.end(is_reset=True)
            return
        request = Request(self.command, self.path, self.headers, size)
        happens = self.proxy.decide(request)
        try:
            happens(Exchange(request, body, self))
        finally:
            self.proxy.is_answered()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _handle

    def ask(self, request: Request, body: bytes) -> Answer:
        upstream = urlsplit(self.proxy.upstream)
        assert upstream.hostname is not None
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=_PATIENCE_S)
        with contextlib.closing(connection):
            # What is signed is signed for us. Else under the store's own name: one looks at that.
            is_signed = request.headers.get("Authorization", "").startswith("AWS4")
            path = request.path.removeprefix(
                self.proxy.upstream
            )  # the whole, where we are the client's proxy
            connection.putrequest(request.method, path, skip_host=is_signed, skip_accept_encoding=True)
            left_out = _HOP_BY_HOP | {"expect"} | (set() if is_signed else {"host"})
            for name, value in request.headers.items():
                if name.lower() not in left_out:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            found = connection.getresponse()
            content = found.read()
        headers = [
            # A resumable upload goes on where the store says: through us.
            (name, value.replace(self.proxy.upstream, self.proxy.url) if name == "Location" else value)
            for name, value in found.getheaders()
            if name.lower() not in _HOP_BY_HOP
        ]
        if found.getheader("Content-Length") is None:
            headers.append(("Content-Length", str(len(content))))
        return Answer(found.status, headers, content)

    def send(self, answer: Answer, until: int | None) -> None:
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, '')}"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self.connection.sendall(head + answer.body[:until])

    def end(self, is_reset: bool) -> None:
        self.close_connection = True
        if is_reset:
            # What is still on its way is lost, too.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
