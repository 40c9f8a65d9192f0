"""Holds hostile connections to a broker: plain sockets and epoll, nothing of CometMQ.

`benchmarks/hostile_connections.py` starts it. It opens connections at a fixed rate, from several
addresses of the loopback network because one has too few ports. What the server closes is opened
again at the same rate. It runs only on processors that nobody else wants, because in reality
hostile peers have their own machine. It ends when its standard input ends. Each line of its output
is JSON: the number of open connections, and how many the server has closed.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass

SOURCES = 16
RECEIVE_BYTES = 4096
"""Of a peer that does not read: what it leaves unread is the server's."""
TICK_S = 0.02
REPORT_S = 0.5
IP_BIND_ADDRESS_NO_PORT = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)


@dataclass(frozen=True)
class Plan:
    """What the connections do.

    Args:
        port: the port of the server.
        count: how many connections are open at a time.
        rate: how many are opened in a second at most.
        begin: what each sends at once, base64.
        drip: what each sends afterwards, one byte every ``drip_s`` seconds, base64.
        drip_s: 0 for nothing.
        reads: whether it reads what the server sends.
    """

    port: int
    count: int
    rate: float
    begin: str = ""
    drip: str = ""
    drip_s: float = 0.0
    reads: bool = True


class Peers:
    """The connections of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._begin, self._drip = base64.b64decode(plan.begin), base64.b64decode(plan.drip)
        self._epoll = select.epoll()
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        self._open: dict[int, socket.socket] = {}
        self._unsent: dict[int, memoryview] = {}
        self._drips: deque[tuple[float, int, socket.socket, int]] = deque()
        """When, on which connection, and which byte of the drip is next; in the order of time."""
        self._opened = 0
        self._closed = 0

    def run(self) -> None:
        """Open and hold connections until the standard input ends."""
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        began_s = reported_s = time.monotonic()
        allowed, last_s = 0.0, began_s
        while True:
            for descriptor, events in self._epoll.poll(TICK_S):
                if descriptor == sys.stdin.fileno():
                    return
                self._serve(descriptor, events)
            now_s = time.monotonic()
            allowed = min(allowed + (now_s - last_s) * self._plan.rate, self._plan.rate)
            last_s = now_s
            while allowed >= 1 and len(self._open) < self._plan.count:
                allowed -= 1
                self._connect()
            while self._drips and self._drips[0][0] <= now_s:
                self._send_byte(*self._drips.popleft()[1:])
            if now_s - reported_s >= REPORT_S:
                reported_s = now_s
                line = {"s": now_s, "open": len(self._open), "closed": self._closed}
                print(json.dumps(line), flush=True)

    def _connect(self) -> None:
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        if not self._plan.reads:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._opened += 1
        peer.bind((f"127.0.1.{1 + self._opened % SOURCES}", 0))
        code = peer.connect_ex(("127.0.0.1", self._plan.port))
        if code not in (0, errno.EINPROGRESS):
            peer.close()
            self._closed += 1
            return
        descriptor = peer.fileno()
        self._open[descriptor] = peer
        if self._begin:
            self._unsent[descriptor] = memoryview(self._begin)
        wanted = select.EPOLLIN if self._plan.reads else select.EPOLLRDHUP
        self._epoll.register(descriptor, wanted | (select.EPOLLOUT if self._begin else 0))
        if self._plan.drip_s:
            self._drips.append((time.monotonic() + self._plan.drip_s, descriptor, peer, 0))

    def _serve(self, descriptor: int, events: int) -> None:
        peer = self._open[descriptor]
        try:
            if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP) or (
                events & select.EPOLLIN and not peer.recv(65536)
            ):
                self._drop(descriptor)
            elif events & select.EPOLLOUT:
                rest = self._unsent[descriptor]
                rest = rest[peer.send(rest) :]
                self._unsent[descriptor] = rest
                if not rest:
                    del self._unsent[descriptor]
                    wanted = select.EPOLLIN if self._plan.reads else select.EPOLLRDHUP
                    self._epoll.modify(descriptor, wanted)
        except BlockingIOError:
            return
        except OSError:
            self._drop(descriptor)

    def _send_byte(self, descriptor: int, peer: socket.socket, at: int) -> None:
        if self._open.get(descriptor) is not peer:
            return  # the server has closed it
        try:
            peer.send(self._drip[at % len(self._drip) :][:1])
        except BlockingIOError:
            pass
        except OSError:
            self._drop(descriptor)
            return
        self._drips.append((time.monotonic() + self._plan.drip_s, descriptor, peer, at + 1))

    def _drop(self, descriptor: int) -> None:
        self._closed += 1
        self._unsent.pop(descriptor, None)
        self._open.pop(descriptor).close()


if __name__ == "__main__":
    Peers(Plan(**json.loads(sys.argv[1]))).run()
