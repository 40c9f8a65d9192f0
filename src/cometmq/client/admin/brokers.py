"""Brokers: their figures and settings, and which of them may be written to.

Source: the broker commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.admin.core import AdminCore
from cometmq.protocol.bodies import KVTable
from cometmq.protocol.codes import RequestCode


class Brokers(AdminCore):
    """Calls about brokers."""

    async def broker_figures(self, address: str) -> dict[str, str]:
        """Give a broker's figures about itself: counts, rates, offsets, disk use."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(answer.body).table
