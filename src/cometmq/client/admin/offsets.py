"""How far groups have come, and how to let them stand elsewhere.

Source: the offset commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.admin.core import AdminCore
from cometmq.model.queue import MessageQueue


class Offsets(AdminCore):
    """Calls about the places of groups."""

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Give what a group has committed of each readable queue of a topic."""
        route = await self._route(topic)
        return {
            queue: await self._offsets.committed(group, queue, zero_if_unknown=False)
            for queue in route.read_queues
        }
