"""Calls the name servers of a client, and fetches their addresses.

The list is shuffled once, so that clients spread over it. A server is kept while it responds;
within one call the next one is tried when it does not. Without addresses, an HTTP endpoint names
them: ``http://<domain>[:8080]/rocketmq/<subgroup>[-<unit>?nofix=1]``. The first line of its
response, which must have status 200, is the list ``host:port;host:port``.

Source: NettyRemotingClient's name server choice, MixAll.getWSAddr and DefaultTopAddressing,
RocketMQ 5.3. There a call never tries a second server."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import quote, urlsplit

from cometmq.client.errors import NameServerError
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError, RemotingError, ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.remoting import ConnectError, RemotingClient, check
from cometmq.remoting.client import split_address

log = logging.getLogger(__name__)


SERVED_BY_EVERY_NAME_SERVER = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""Requests that only a server of another role does not know."""
NONE_SET = "no name server is set: give name_servers='host:port', or set NAMESRV_ADDR"
DEFAULT_ADDRESS = "127.0.0.1:9876"
"""The name server of a client without any other: a server on this machine with its usual port."""
DEFAULT_USED = (
    f"{DEFAULT_ADDRESS} is the default, since no address is set by the argument or the setting "
    "name_servers, COMETMQ_CLIENT_NAME_SERVERS or NAMESRV_ADDR; `cometmq standalone` starts a "
    "server there"
)


def parse_addresses(text: str | Iterable[str], *, required: bool = True) -> list[str]:
    """Split a list of addresses: ``host:port;host:port``, or any iterable of them.

    Raises:
        ConfigError: an address is not ``host:port``, or there is none and one is required.
    """
    parts: list[str] = text.split(";") if isinstance(text, str) else []
    if not isinstance(text, str):
        parts = list(text) if isinstance(text, Iterable) else [text]
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(
            f"name_servers={text!r}: expected host:port;host:port, or a list of texts"
        )
    addresses = list(dict.fromkeys(_address(part.strip()) for part in parts if part.strip()))
    if required and not addresses:
        raise ConfigError("no name server address: expected host:port;host:port")
    return addresses


def _address(text: str) -> str:
    address = text.rpartition("/")[2]
    try:
        host, _ = split_address(address)
    except ConnectError:
        host = ""
    if not host:
        is_port = address.rpartition(":")[2].isdecimal() and ":" in address
        more = ", with a port from 1 to 65535" if is_port else ""
        raise ConfigError(f"a name server address {text!r}: expected host:port{more}")
    if "," in host:
        raise ConfigError(f"a name server address {text!r}: expected host:port;host:port")
    return address


@runtime_checkable
class HasNameServers(Protocol):
    """A server that knows the address for clients, such as a broker of `cometmq.embedded`."""

    @property
    def name_servers(self) -> str:
        """The addresses of name servers: ``host:port;host:port``."""


class NameServers:
    """Calls a name server; if it does not respond, calls the next one.

    Args:
        remoting: makes the connections.
        addresses: the name servers; may be replaced later.
        shuffle: try them in a random order, so that clients spread over them.
        note: is added to the error that no name server responded.
    """

    def __init__(
        self,
        remoting: RemotingClient,
        addresses: Sequence[str],
        *,
        shuffle: bool = True,
        note: str = "",
    ) -> None:
        self._remoting = remoting
        self._note = f" ({note})" if note else ""
        self._shuffles = shuffle
        self._addresses: list[str] = []
        self._current = 0
        self.replace(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address, in the order they are tried."""
        return tuple(self._addresses)

    @property
    def current(self) -> str:
        """The address that responded last, or that is tried first."""
        return self._addresses[self._current] if self._addresses else ""

    def replace(self, addresses: Sequence[str]) -> None:
        """Use these addresses from now on. The same addresses in another order change nothing."""
        if set(addresses) == set(self._addresses):
            return
        before = self._addresses
        self._addresses = list(addresses)
        if self._shuffles:
            random.shuffle(self._addresses)
        if before:
            log.info("name servers replaced from=%s to=%s", before, self._addresses)
        for gone in set(before) - set(addresses):
            self._remoting.disconnect(gone)
        kept = before[self._current] if before else ""
        self._current = self._addresses.index(kept) if kept in self._addresses else 0

    async def call(
        self, code: int, header: Header | None = None, body: bytes = b"", *, timeout: float
    ) -> Command:
        """Call the name servers one after the other until one responds, with success or an error.

        Args:
            code: the request code.
            header: its header, if it has one.
            body: its body.
            timeout: seconds for the whole call; each server gets its share of what is left.

        Raises:
            NameServerError: none of them responded in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        failures: list[str] = []
        order = self._order()
        for address in order:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            share = left / (len(order) - len(failures))
            try:
                response = await self._remoting.call(address, code, header, body, timeout=share)
            except RemotingError as error:
                failures.append(f"{address}: {error}")
                continue
            self._settle(address)
            return response
        raise NameServerError(
            f"no name server responded: {'; '.join(failures) or 'none is known'}{self._note}"
        )

    async def request(
        self, code: int, header: Header | None = None, body: bytes = b"", *, timeout: float
    ) -> Command:
        """Call as `call` does; return a successful response.

        Raises:
            NameServerError: none of them responded in time.
            ResponseError: the name server refused, or another server has the address.
        """
        try:
            return check(await self.call(code, header, body, timeout=timeout))
        except ResponseError as error:
            unknown = error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if unknown and code in SERVED_BY_EVERY_NAME_SERVER:
                met = f"{self.current} is not a name server, expected its address"
                raise ResponseError(error.code, f"{met}: {error.remark.strip()}") from None
            error.address = self.current
            raise

    def _order(self) -> list[str]:
        return self._addresses[self._current :] + self._addresses[: self._current]

    def _settle(self, address: str) -> None:
        """Use a name server that responded for later calls, unless the list was replaced since."""
        if address not in self._addresses:
            return
        before, self._current = self._current, self._addresses.index(address)
        if before != self._current:
            log.warning("name server changed from=%s to=%s", self._addresses[before], address)


USUAL_PORT = 8080
FETCH_S = 3.0
RESPONSE_BYTES_MAX = 64 * 1024


def endpoint_url(settings: ClientSettings) -> str:
    """Return the URL that returns the name servers; empty if that is switched off."""
    domain = settings.http_domain
    if not domain:
        return ""
    port = "" if ":" in domain else f":{USUAL_PORT}"
    unit = settings.unit_name.strip()
    tail = f"-{quote(unit, safe='')}?nofix=1" if unit else ""
    return f"http://{domain}{port}/rocketmq/{settings.http_subgroup}{tail}"


async def fetch_addresses(url: str, *, timeout: float = FETCH_S) -> list[str]:
    """Fetch the addresses from an endpoint.

    Args:
        url: as `endpoint_url` makes it.
        timeout: seconds for the whole.

    Raises:
        NameServerError: it did not respond in time, or the response has no addresses.
    """
    try:
        async with asyncio.timeout(timeout):
            response = await _get(url)
    except TimeoutError:
        raise NameServerError(f"{url} did not respond within {timeout:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise NameServerError(f"{url} did not respond: {error}") from None
    try:
        return addresses_in(response)
    except ConfigError as error:
        raise NameServerError(f"{url} returned no name servers: {error}") from None


async def _get(url: str) -> bytes:
    """Send a request of HTTP/1.0, whose response ends with the connection."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or USUAL_PORT)
    try:
        request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode("ascii"))
        return await _read(reader)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader) -> bytes:
    response = bytearray()
    while data := await reader.read(RESPONSE_BYTES_MAX):
        response += data
        if len(response) > RESPONSE_BYTES_MAX:
            raise ValueError(f"the response is longer than {RESPONSE_BYTES_MAX} bytes")
    return bytes(response)


def addresses_in(response: bytes) -> list[str]:
    """Return the addresses in an HTTP response.

    Raises:
        ConfigError: it is no success, or its first line is not a list of addresses.
    """
    head, _, body = response.partition(b"\r\n\r\n")
    status = head.split(None, 2)[1:2]
    if status != [b"200"]:
        said = head.partition(b"\r\n")[0][:80].decode("ascii", "replace")
        raise ConfigError(f"status {said!r}: expected 200")
    return parse_addresses(body.decode("ascii", "replace").strip().partition("\n")[0])
