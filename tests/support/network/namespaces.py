"""Network namespaces as machines: a switch in this process carries their packets.

Each host is a thread in a network namespace of its own; the processes that it starts, and the
sockets that it opens, are there too. A namespace has a TUN device, whose other end the switch
reads and writes. So a test can cut, delay, slow and thin out each direction between two hosts
without ``tc netem``, which few kernels of virtual machines have.
A namespace has no name: the kernel removes it with its last process, even if the test is killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
TUN, DEVICE = "/dev/net/tun", "tun0"
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8914, 0x8916, 0x891C, 0x8922
"""Requests for a network device: netdevice(7). So no test needs the program ``ip``."""
IFF_UP = 0x0001
SUBNET = "10.231.0"
MTU = 16_000
"""Large packets, because each costs the switch the same."""
HOST_WAIT_S = 60.0
QUEUED_BYTES_MAX = 4 * 1024 * 1024
"""What waits for a slow or late link; packets beyond are lost, as in a router."""
IPV4_DESTINATION = slice(16, 20)


class NoNetworkError(OSError):
    """The system has no network namespaces or no TUN devices for this process."""


@dataclass
class Link:
    """One direction between two hosts, as it is now."""

    is_cut: bool = False
    loss: float = 0.0
    """The share of packets that are lost."""
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    """0 for as fast as the switch is."""
    passed: int = 0
    lost: int = 0
    """Packets that were lost, by a cut too."""
    queued_bytes: int = 0
    free_at: float = 0.0
    """When a slow link has sent what it has."""

    def heal(self) -> None:
        """Pass all packets on at once again."""
        self.is_cut, self.loss, self.delay_s, self.bytes_per_s = False, 0.0, 0.0, 0.0


class Host:
    """A machine of the network: a namespace, and a thread in it."""

    def __init__(self, number: int) -> None:
        self.address = f"{SUBNET}.{number}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"host {self.address}")
        try:
            self.device = self._thread.submit(self._enter).result(HOST_WAIT_S)
            """The switch's end of its TUN device."""
        except BaseException:
            self._thread.shutdown()
            raise

    def run(self, function: Callable[[], T], timeout: float = HOST_WAIT_S) -> T:
        """Run a function on this machine, and return what it returns.

        Processes that it starts stay there. Threads and loops that it starts do too.
        """
        return self._thread.submit(function).result(timeout)

    def close(self) -> None:
        """End the thread; its processes have ended before."""
        self._thread.shutdown()
        os.close(self.device)

    def _enter(self) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            error = ctypes.get_errno()
            raise NoNetworkError(
                error, f"no network namespace: {os.strerror(error)}; expected root with all rights"
            )
        try:
            device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise NoNetworkError(
                error.errno,
                f"no TUN devices: {error.strerror}; expected a kernel that has them",
                TUN,
            ) from None
        fcntl.ioctl(device, TUNSETIFF, _request(DEVICE, struct.pack("H", IFF_TUN | IFF_NO_PI)))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for number, name, argument in (
                (SIOCSIFMTU, DEVICE, struct.pack("i", MTU)),
                (SIOCSIFADDR, DEVICE, _ipv4(self.address)),
                (SIOCSIFNETMASK, DEVICE, _ipv4("255.255.255.0")),
                (SIOCSIFFLAGS, DEVICE, struct.pack("H", IFF_UP)),
                (SIOCSIFFLAGS, "lo", struct.pack("H", IFF_UP)),
            ):
                fcntl.ioctl(control, number, _request(name, argument))
        return device


def _request(device: str, argument: bytes) -> bytes:
    """The struct ifreq of a request."""
    return struct.pack("16s24s", device.encode(), argument)


def _ipv4(address: str) -> bytes:
    """The struct sockaddr_in of an address."""
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(address))


class Network:
    """Hosts and the switch between them.

    Args:
        hosts: how many machines there are.
        seed: of the packets that a lossy link loses.
    """

    def __init__(self, hosts: int, *, seed: int) -> None:
        self._chance = random.Random(seed)
        self.hosts: list[Host] = []
        self._links: dict[tuple[str, str], Link] = {}
        self._late: list[tuple[float, int, Link, int, bytes]] = []
        self._order = itertools.count()
        self._stop_reader, self._stop_writer = os.pipe()
        self._switch = threading.Thread(target=self._forward, name="switch", daemon=True)
        try:
            for number in range(hosts):
                self.hosts.append(Host(number + 1))
        except BaseException:
            self._close_hosts()
            raise
        for one, other in itertools.permutations(self.hosts, 2):
            self._links[one.address, other.address] = Link()

    def __enter__(self) -> Self:
        self._switch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._stop_writer, b"x")
        self._switch.join(HOST_WAIT_S)
        self._close_hosts()

    def link(self, source: Host, target: Host) -> Link:
        """Return the direction from one host to another."""
        return self._links[source.address, target.address]

    def between(self, one: Host, other: Host) -> tuple[Link, Link]:
        """Return both directions between two hosts."""
        return self.link(one, other), self.link(other, one)

    def heal(self) -> None:
        """Let all packets pass at once again."""
        for link in self._links.values():
            link.heal()

    def _close_hosts(self) -> None:
        for host in self.hosts:
            host.close()
        os.close(self._stop_reader)
        os.close(self._stop_writer)

    def _forward(self) -> None:
        devices = {socket.inet_aton(host.address): host for host in self.hosts}
        sources = {host.device: host for host in self.hosts}
        poll = select.poll()
        for number in (self._stop_reader, *sources):
            poll.register(number, select.POLLIN)
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) * 1000 if self._late else None
            for number, _ in poll.poll(wait):
                if number == self._stop_reader:
                    return
                source = sources[number]
                for packet in _packets(number):
                    target = devices.get(packet[IPV4_DESTINATION])
                    if target is not None and target is not source:
                        self._take(self.link(source, target), target.device, packet)
            self._send_late()

    def _take(self, link: Link, device: int, packet: bytes) -> None:
        """Lose a packet, send it, or keep it until its time."""
        too_much = link.queued_bytes + len(packet) > QUEUED_BYTES_MAX
        if link.is_cut or too_much or (link.loss and self._chance.random() < link.loss):
            link.lost += 1
            return
        now = time.monotonic()
        begun = max(now, link.free_at)
        link.free_at = begun + (len(packet) / link.bytes_per_s if link.bytes_per_s else 0.0)
        at = link.free_at + link.delay_s
        if at <= now and not link.queued_bytes:
            _write(device, packet, link)
            return
        link.queued_bytes += len(packet)
        heapq.heappush(self._late, (at, next(self._order), link, device, packet))

    def _send_late(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, link, device, packet = heapq.heappop(self._late)
            link.queued_bytes -= len(packet)
            if link.is_cut:
                link.lost += 1
            else:
                _write(device, packet, link)


def _packets(device: int) -> list[bytes]:
    """Read some packets; not all, so that other hosts have their turn."""
    packets = []
    for _ in range(64):
        try:
            packets.append(os.read(device, MTU))
        except BlockingIOError:
            break
    return packets


def _write(device: int, packet: bytes, link: Link) -> None:
    try:
        os.write(device, packet)
        link.passed += 1
    except BlockingIOError:  # the host does not keep up
        link.lost += 1
