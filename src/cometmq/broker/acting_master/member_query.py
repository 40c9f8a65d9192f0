"""The brokers with the name of this one, as the name servers know them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from cometmq.model.errors import CometError
from cometmq.protocol.bodies.route import GetBrokerMemberGroupResponseBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.namesrv import GetBrokerMemberGroupRequest
from cometmq.remoting import RemotingClient, check
from cometmq.remoting.slices import decode

TIMEOUT_S: Final = 2.0
"""Timeout of one request."""


async def broker_set_addresses(
    client: RemotingClient, name_servers: Iterable[str], header: GetBrokerMemberGroupRequest
) -> dict[int, str]:
    """Return broker id -> address of all brokers that any name server has.

    Raises:
        CometError: no name server has responded.
    """
    servers = list(name_servers)
    found = await asyncio.gather(
        *(_addresses_at(client, name_server, header) for name_server in servers),
        return_exceptions=True,
    )
    addresses: dict[int, str] = {}
    failures = [each for each in found if isinstance(each, BaseException)]
    for failure in failures:
        if not isinstance(failure, CometError):
            raise failure
    if len(failures) == len(servers):
        raise failures[0] if failures else CometError("no name server is known")
    for each in found:
        if not isinstance(each, BaseException):
            addresses |= each
    return addresses


async def _addresses_at(
    client: RemotingClient, name_server: str, header: GetBrokerMemberGroupRequest
) -> dict[int, str]:
    response = await client.call(
        name_server, RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout=TIMEOUT_S
    )
    body = await decode(GetBrokerMemberGroupResponseBody, check(response).body)
    group = body.broker_member_group
    return {} if group is None else group.broker_addrs
