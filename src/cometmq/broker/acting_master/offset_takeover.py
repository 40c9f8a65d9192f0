"""Takes over the offsets, and the passed slots of timers, of a slave that acted as the master.

With ``enableSlaveActingMaster`` name servers show consumers the slave with the smallest id as the
master while there is none. Before the master listens again, it announces itself to that slave. The
slave then sends nothing more to other brokers, and the master takes over each offset of the slave
that is larger than its own. Later would be too late: the slave replaces its offsets with copies of
the master's. Without a response the master starts anyway, and consumers get messages again.

Source: BrokerPreOnlineService, RocketMQ 5.3, which stays isolated until the slave responds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.broker.acting_master.member_query import TIMEOUT_S, broker_set_addresses
from cometmq.broker.delay.delivery import ScheduledDelivery
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.replication.paged_tables import OFFSETS, fetch_table
from cometmq.broker.role import MASTER_ID
from cometmq.broker.timers.delivery import TimerDelivery
from cometmq.broker.timers.passed_slots import fetch_passed
from cometmq.model.errors import CometError, ProtocolError
from cometmq.protocol.bodies.group import DelayOffsetSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.broker_admin import ExchangeBrokerHaInfoRequest
from cometmq.protocol.headers.namesrv import GetBrokerMemberGroupRequest
from cometmq.remoting import RemotingClient, check
from cometmq.remoting.slices import decode

log = logging.getLogger(__name__)

LIMIT_S: Final = 5.0
"""How long a start waits for all of it."""
ANNOUNCED_S: Final = 4.0
"""How long a slave may take until nothing that it sends is in flight."""


async def take_over_offsets(
    client: RemotingClient,
    name_servers: Iterable[str],
    header: GetBrokerMemberGroupRequest,
    announcement: ExchangeBrokerHaInfoRequest | None,
    *,
    offsets: OffsetStore,
    bounds: Callable[[str, int], tuple[int, int]],
    delay: ScheduledDelivery,
    timers: TimerDelivery,
) -> None:
    """Take over the larger offsets of the slave that acts as the master.

    Args:
        client: sends the requests.
        name_servers: know the slaves.
        header: names the cluster and the broker.
        announcement: where this master will be; None if that is not known yet.
        offsets, delay, timers: get what was found.
        bounds: returns the bounds of a queue; no offset is taken over beyond its end.
    """
    try:
        async with asyncio.timeout(LIMIT_S):
            slaves = await broker_set_addresses(client, name_servers, header)
            slaves.pop(MASTER_ID, None)
            if not slaves:
                return
            slave = slaves[min(slaves)]
            if announcement is not None:
                await _announce(client, slave, announcement)
            found = await fetch_table(client, slave, OFFSETS, timeout=TIMEOUT_S)
            assert found is not None  # it is always wanted
            count = await offsets.advance(found.offset_table, bounds)
            count += await _take_schedule_offsets(client, slave, delay)
            timers.advance((await fetch_passed(client, slave, timeout=TIMEOUT_S)).passed)
            log.info("took over offsets slave=%s queues=%d", slave, count)
    except (CometError, OSError) as problem:  # OSError: also the timeout
        log.warning(
            "offsets that were committed at a slave are not taken over, consumers may get messages"
            " again: %s",
            str(problem) or f"no response within {LIMIT_S:g} s",
        )


async def _announce(
    client: RemotingClient, slave: str, announcement: ExchangeBrokerHaInfoRequest
) -> None:
    """Announce this master, so that the slave stops acting; its offsets count even if it fails."""
    try:
        check(
            await client.call(
                slave, RequestCode.EXCHANGE_BROKER_HA_INFO, announcement, timeout=ANNOUNCED_S
            )
        )
    except CometError as problem:
        log.warning("messages may be delivered twice, slave=%s acts on: %s", slave, problem)


async def _take_schedule_offsets(
    client: RemotingClient, slave: str, delay: ScheduledDelivery
) -> int:
    response = await client.call(slave, RequestCode.GET_ALL_DELAY_OFFSET, timeout=TIMEOUT_S)
    found = await decode(DelayOffsetSerializeWrapper, check(response).body)
    if any(level < 0 or offset < 0 for level, offset in found.offset_table.items()):
        raise ProtocolError(
            f"met the schedule offsets {str(found.offset_table)[:80]}, expected 0 or more"
        )
    return delay.advance(found.offset_table)
