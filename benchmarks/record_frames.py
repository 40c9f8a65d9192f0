"""Records the send frames of RocketMQ clients into ``frames/*.json``.

Each client sends one message to a broker through a proxy that keeps the bytes. The clients are
those of the interoperability tests; they need a JDK, Maven, Go, Node.js and the C++ client.

Example::

    python benchmarks/record_frames.py
    python benchmarks/record_frames.py go node
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import frames
import servers

sys.path.append(str(servers.TESTS / "interop"))
import programs

FILES = Path("build/bench/frames-recording")
SEND_CODES = (10, 310)
CLIENTS = {
    "java": (programs.JAVA_53, "Java client 5.3.3", {}),
    "java-binary": (
        programs.JAVA_53,
        "Java client 5.3.3, rocketmq.serialize.type=ROCKETMQ",
        {"ROCKETMQ_SERIALIZE_TYPE": "ROCKETMQ"},
    ),
    "go": (programs.GO, "Go client 2.1.2", {}),
    "node": (programs.NODE, "Node.js client ali-ons 3.12.0", {}),
    "cpp": (programs.CPP, "C++ client, Python binding 0.4.4", {}),
}


class Proxy:
    """Passes the bytes of one port on to another, keeps those of the clients, and may replace one
    text in what the server says with another of the same length.
    """

    def __init__(self, target: int, *, replace: tuple[bytes, bytes] = (b"", b"")) -> None:
        self.streams: list[bytearray] = []
        self._target = target
        self._replace = replace
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                said = bytearray()
                self.streams.append(said)
                threading.Thread(target=self._pass, args=(client, server, said)).start()
                threading.Thread(target=self._pass, args=(server, client, None)).start()

    def _pass(self, source: socket.socket, sink: socket.socket, keep: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if keep is not None:
                    keep += data
                elif self._replace[0]:
                    data = data.replace(*self._replace)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def main() -> int:
    """Record the clients that the command line names, or all."""
    names = sys.argv[1:] or list(CLIENTS)
    if unknown := set(names) - set(CLIENTS):
        sys.exit(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    shutil.rmtree(FILES, ignore_errors=True)
    server = servers.Comet((FILES / "broker").absolute(), flush="ASYNC_FLUSH")
    try:
        server.start()
        servers.make_topic(server, frames.TOPIC, queues=8)
        for name in names:
            frame = _record(name, server)
            frames.prepare(frame)
            _save(name, frame)
            print(f"{name}: {len(frame)} bytes, {frame[8:80]!r}")
    finally:
        server.stop()
    return 0


def _record(name: str, server: servers.Server) -> bytes:
    kind, _, environment = CLIENTS[name]
    broker = Proxy(server.port)
    ports = tuple(f"127.0.0.1:{port}".encode() for port in (server.port, broker.port))
    if len(ports[0]) != len(ports[1]):
        raise frames.FrameError(f"the ports {ports} have not the same number of digits")
    namesrv = Proxy(server.namesrv_port, replace=(ports[0], ports[1]))
    folder = FILES.absolute() / name
    folder.mkdir(parents=True)
    with _environment(environment):
        client = programs.Client(kind, f"127.0.0.1:{namesrv.port}", folder)
    message = {"body": frames.BODY.decode(), "tag": "TagA", "keys": frames.KEY.decode()}
    try:
        client.send(frames.TOPIC, [message])
    finally:
        client.close()
        broker.close()
        namesrv.close()
    for frame in _frames(broker.streams):
        if frame.endswith(frames.BODY) and _code(frame) in SEND_CODES:
            return frame
    raise frames.FrameError(f"{name} sent no frame with one of the codes {SEND_CODES}")


@contextmanager
def _environment(more: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _frames(streams: list[bytearray]) -> Iterator[bytes]:
    for stream in streams:
        at = 0
        while at + 4 <= len(stream):
            size = 4 + int.from_bytes(stream[at : at + 4], "big")
            yield bytes(stream[at : at + size])
            at += size


def _code(frame: bytes) -> int:
    header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
    if frame[4] == frames.BINARY:
        return int.from_bytes(header[:2], "big")
    return int(json.loads(header)["code"])


def _save(name: str, frame: bytes) -> None:
    data = {"client": CLIENTS[name][1], "frame": base64.b64encode(frame).decode()}
    frames.FOLDER.mkdir(exist_ok=True)
    (frames.FOLDER / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
