"""Connects through SOCKS 5 proxies, each of which serves some networks.

    greeting   := 5 | count:u8 | methods        reply := 5 | method:u8
    password   := 1 | length:u8 | name | length:u8 | password        reply := 1 | status:u8
    request    := 5 | 1 | 0 | host | port:u16   reply := 5 | code:u8 | 0 | host | port:u16
    host       := 1 | 4 bytes, or 4 | 16 bytes, or 3 | length:u8 | name

Source: RFC 1928 and RFC 1929; the choice by network is NettyRemotingClient's, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec

from cometmq.model.address import host_and_port
from cometmq.model.errors import ConfigError

VERSION, PASSWORD_VERSION = 5, 1
OPEN, WITH_PASSWORD = 0, 2
CONNECT = 1
IPV4, NAME, IPV6 = 1, 3, 4
TEXT_BYTES_MAX = 255
_ADDRESS_BYTES = {IPV4: 4, IPV6: 16}
_REFUSALS = {
    1: "general failure",
    2: "not allowed",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time ran out",
    7: "command not supported",
    8: "address type not supported",
}


class SocksError(OSError):
    """The proxy refuses the connection; the text says why."""


@dataclass(frozen=True, slots=True)
class SocksProxy:
    """A proxy with its credentials; `repr` hides the password."""

    host: str
    port: int
    username: str = ""
    password: str = field(default="", repr=False)

    async def connect(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected to a peer through the proxy.

        The caller bounds the time; cancelling closes the socket.

        Raises:
            SocksError: the proxy refuses.
            OSError: it cannot be reached.
        """
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = addresses[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            await loop.sock_connect(made, address)
            handshake = _Handshake(loop, made)
            await handshake.authenticate(self)
            await handshake.request_connection(host, port)
        except BaseException:
            made.close()
            raise
        return made


class SocksProxies:
    """The proxy for each address.

    Args:
        by_network: network, such as ``10.0.0.0/8``, to proxy; ``0.0.0.0/0`` serves all addresses,
            those with a name too. The first network that has the address decides.
    """

    def __init__(self, by_network: Mapping[str, SocksProxy] | None = None) -> None:
        self._proxies: list[tuple[IPv4Network | IPv6Network, SocksProxy]] = []
        for text, proxy in (by_network or {}).items():
            try:
                self._proxies.append((ip_network(text, strict=False), proxy))
            except ValueError:
                raise ConfigError(f"a network {text!r}: expected address/bits") from None

    @classmethod
    def parse(cls, text: str) -> SocksProxies:
        """Read RocketMQ's form: JSON, network to ``addr``, ``username`` and ``password``.

        Raises:
            ConfigError: it is not of this form; the text hides the passwords.
        """
        try:
            found = msgspec.json.decode(text or "{}", type=dict[str, _Entry])
        except msgspec.MsgspecError:
            raise ConfigError(
                'SOCKS proxies: expected JSON, {"network": {"addr": "host:port"}}'
            ) from None
        return cls({network: entry.proxy() for network, entry in found.items()})

    def to(self, host: str) -> SocksProxy | None:
        """Return the proxy of a host, or None for a direct connection."""
        try:
            address = ip_address(host)
        except ValueError:
            address = None
        for network, proxy in self._proxies:
            if network.prefixlen == 0 or (address is not None and address in network):
                return proxy
        return None


class _Entry(msgspec.Struct):
    addr: str
    username: str | None = None
    password: str | None = None

    def proxy(self) -> SocksProxy:
        host, _, port = self.addr.rpartition(":")
        texts = (host, self.username or "", self.password or "")
        if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65_536:
            raise ConfigError("a SOCKS proxy: expected host:port as its addr")
        if any(len(text.encode()) > TEXT_BYTES_MAX for text in texts):
            raise ConfigError(f"a SOCKS proxy: a text of more than {TEXT_BYTES_MAX} bytes")
        return SocksProxy(host.strip("[]"), int(port), texts[1], texts[2])


class _Handshake:
    """The SOCKS handshake with a proxy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock

    async def authenticate(self, proxy: SocksProxy) -> None:
        """Agree on an authentication method, and authenticate."""
        methods = bytes([OPEN, WITH_PASSWORD] if proxy.username else [OPEN])
        await self._send(bytes([VERSION, len(methods)]) + methods)
        version, method = await self._receive(2)
        if version != VERSION or method not in methods:
            raise SocksError("the SOCKS proxy supports none of our authentication methods")
        if method == WITH_PASSWORD:
            texts = [proxy.username.encode(), proxy.password.encode()]
            credentials = b"".join(bytes([len(text)]) + text for text in texts)
            await self._send(bytes([PASSWORD_VERSION]) + credentials)
            if (await self._receive(2))[1] != 0:
                raise SocksError("the SOCKS proxy rejects the user name or the password")

    async def request_connection(self, host: str, port: int) -> None:
        """Request a connection to a peer."""
        await self._send(bytes([VERSION, CONNECT, 0]) + _host_bytes(host) + port.to_bytes(2, "big"))
        version, reply, _, kind = await self._receive(4)
        if version != VERSION or reply != 0:
            why = _REFUSALS.get(reply, f"reply {reply}")
            where = host_and_port(host, port)
            raise SocksError(f"the SOCKS proxy cannot connect to {where}: {why}")
        size = _ADDRESS_BYTES.get(kind)
        await self._receive((await self._receive(1))[0] + 2 if size is None else size + 2)

    async def _send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = await self._loop.sock_recv(self._socket, size - len(received))
            if not more:
                raise SocksError("the SOCKS proxy closed the connection")
            received += more
        return received


def _host_bytes(host: str) -> bytes:
    try:
        packed = ip_address(host).packed
    except ValueError:
        name = host.encode("idna")
        return bytes([NAME, len(name)]) + name
    return bytes([IPV4 if len(packed) == _ADDRESS_BYTES[IPV4] else IPV6]) + packed
