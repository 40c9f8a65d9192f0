"""Accepts connections and takes processor time for each: plain sockets and epoll.

`benchmarks/hostile_connections.py` starts it beside the broker, and the hostile connections go to
it instead of to the broker. What an honest client of the broker notices then is no work of the
broker: it is the kernel, and who runs when on the processors of this machine.

Its arguments are how many bytes it sends, once, to a connection that has sent something, and the
seconds of processor time that it takes for each connection. Of 0 bytes it leaves what is sent to
it in the kernel, as the broker does. It prints its port. It ends when its standard input ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time

BACKLOG = 1024


def main(response: bytes, work_s: float) -> None:
    """Serve until the standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    epoll = select.epoll()
    epoll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
    epoll.register(listener.fileno(), select.EPOLLIN)
    held: dict[int, socket.socket] = {}
    while True:
        for descriptor, events in epoll.poll():
            if descriptor == sys.stdin.fileno():
                return
            if descriptor == listener.fileno():
                with contextlib.suppress(BlockingIOError):
                    peer = listener.accept()[0]
                    peer.setblocking(False)
                    held[peer.fileno()] = peer
                    wanted = select.EPOLLIN if response else 0
                    epoll.register(peer.fileno(), wanted | select.EPOLLRDHUP)
                    if not response:
                        _work(work_s)
                continue
            peer = held[descriptor]
            if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                held.pop(descriptor).close()
                continue
            with contextlib.suppress(OSError):
                peer.recv(65536)
                peer.send(response)
                _work(work_s)


def _work(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


if __name__ == "__main__":
    main(bytes(int(sys.argv[1])), float(sys.argv[2]))
