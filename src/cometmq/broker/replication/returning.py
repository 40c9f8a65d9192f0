"""Takes back the offsets that consumers committed at a slave which acted as the master.

With ``enableSlaveActingMaster`` name servers show consumers the slave with the smallest id as the
master while there is none. Before the master listens again, it takes over every offset of that
slave that is larger than its own; later, the slave would have replaced them with those it copies.
Without a response it starts all the same: consumers then get messages again that they had before.

Source: BrokerPreOnlineService, RocketMQ 5.3, which stays isolated until the slave responds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.role import MASTER_ID
from cometmq.model.errors import CometError
from cometmq.protocol.bodies import ConsumerOffsetSerializeWrapper, GetBrokerMemberGroupResponseBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import GetBrokerMemberGroupRequest
from cometmq.remoting import RemotingClient, check
from cometmq.remoting.slices import decode

log = logging.getLogger(__name__)

LIMIT_S: Final = 5.0
"""How long a start waits for all of it."""
TIMEOUT_S: Final = 2.0
"""Timeout of one request."""


async def take_back_offsets(
    client: RemotingClient,
    name_servers: Iterable[str],
    header: GetBrokerMemberGroupRequest,
    offsets: OffsetStore,
    bounds: Callable[[str, int], tuple[int, int]],
) -> None:
    """Take over the larger offsets of the slave that acts as the master.

    Args:
        client: sends the requests.
        name_servers: know the slaves.
        header: names the cluster and the broker.
        offsets: get what was found.
        bounds: returns the bounds of a queue; no offset is taken over beyond its end.
    """
    try:
        async with asyncio.timeout(LIMIT_S):
            slave = await _acting_master(client, name_servers, header)
            if slave is None:
                return
            response = await client.call(
                slave, RequestCode.GET_ALL_CONSUMER_OFFSET, timeout=TIMEOUT_S
            )
            found = await decode(ConsumerOffsetSerializeWrapper, check(response).body)
            count = await offsets.advance(found.offset_table, bounds)
            log.info("took back committed offsets slave=%s queues=%d", slave, count)
    except (CometError, OSError) as problem:  # OSError: also the timeout
        log.warning(
            "offsets that were committed at a slave are not taken back, consumers may get messages"
            " again: %s",
            str(problem) or f"no response within {LIMIT_S:g} s",
        )


async def _acting_master(
    client: RemotingClient, name_servers: Iterable[str], header: GetBrokerMemberGroupRequest
) -> str | None:
    """Return the address of the slave with the smallest id; None if there is none.

    Raises:
        CometError: no name server has responded.
    """
    failure: CometError | None = None
    has_response = False
    for name_server in name_servers:
        try:
            response = await client.call(
                name_server, RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout=TIMEOUT_S
            )
            found = await decode(GetBrokerMemberGroupResponseBody, check(response).body)
        except CometError as problem:
            failure = problem
            continue
        has_response = True
        group = found.broker_member_group
        addresses = {} if group is None else group.broker_addrs
        slaves = {number: a for number, a in addresses.items() if number != MASTER_ID}
        if slaves:
            return slaves[min(slaves)]
    if failure is not None and not has_response:
        raise failure
    return None
