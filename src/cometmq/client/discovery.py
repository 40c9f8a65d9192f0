"""Asks an HTTP endpoint which name servers there are, where nobody has named any.

The address is ``http://<domain>[:8080]/rocketmq/<subgroup>[-<unit>?nofix=1]``. The first line of
the answer, which must have status 200, is the list ``host:port;host:port``.

Source: MixAll.getWSAddr and DefaultTopAddressing, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote, urlsplit

from cometmq.client.config import ClientSettings
from cometmq.client.errors import NameServerError
from cometmq.client.name_servers import parse_addresses
from cometmq.model.errors import ConfigError

USUAL_PORT = 8080
ANSWER_S = 3.0
ANSWER_BYTES_MAX = 64 * 1024


def endpoint(settings: ClientSettings) -> str:
    """Give the address that is asked for name servers; empty when asking is switched off."""
    domain = settings.http_domain
    if not domain:
        return ""
    port = "" if ":" in domain else f":{USUAL_PORT}"
    unit = settings.unit_name.strip()
    tail = f"-{quote(unit, safe='')}?nofix=1" if unit else ""
    return f"http://{domain}{port}/rocketmq/{settings.http_subgroup}{tail}"


async def ask(url: str, *, timeout: float = ANSWER_S) -> list[str]:
    """Give the addresses that an endpoint names.

    Args:
        url: as `endpoint` makes it.
        timeout: seconds for the whole.

    Raises:
        NameServerError: it does not answer in time, or not with addresses; says which.
    """
    try:
        async with asyncio.timeout(timeout):
            answer = await _get(url)
    except TimeoutError:
        raise NameServerError(f"{url} did not respond within {timeout:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise NameServerError(f"{url} did not respond: {error}") from None
    try:
        return addresses_in(answer)
    except ConfigError as error:
        raise NameServerError(f"{url} returned no name servers: {error}") from None


async def _get(url: str) -> bytes:
    """Ask in the oldest form of HTTP, whose answer ends with the connection."""
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
    answer = bytearray()
    while data := await reader.read(ANSWER_BYTES_MAX):
        answer += data
        if len(answer) > ANSWER_BYTES_MAX:
            raise ValueError(f"the response is longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(answer)


def addresses_in(answer: bytes) -> list[str]:
    """Give the addresses that an HTTP answer names.

    Raises:
        ConfigError: it is no success, or its first line is not a list of addresses.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(None, 2)[1:2]
    if status != [b"200"]:
        said = head.partition(b"\r\n")[0][:80].decode("ascii", "replace")
        raise ConfigError(f"status {said!r}: expected 200")
    return parse_addresses(body.decode("ascii", "replace").strip().partition("\n")[0])
