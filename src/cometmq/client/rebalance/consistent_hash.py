"""Divides queues so that few of them move when a member comes or goes: a ring of hashes.

    ring := hash of ``<client id>-<n>`` → client id, n from 0 up to the number of virtual nodes
    key  := hash of ``MessageQueue [topic=T, brokerName=B, queueId=N]``

A queue belongs to the first node whose hash is its key's or above, past the highest to the first.

Source: AllocateMessageQueueConsistentHash and ConsistentHashRouter, RocketMQ 5.3.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence

from cometmq.client.rebalance.strategies import position
from cometmq.model.errors import ConfigError
from cometmq.model.queue import MessageQueue

VIRTUAL_NODES = 10


def md5_32(text: str) -> int:
    """Give the first four bytes of a text's MD5 as a number."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class ConsistentHash:
    """Allocates queues by a hash ring.

    Args:
        virtual_nodes: nodes of each member on the ring; with 0 no member gets a queue.
        hash: maps a text to a number; the same for all members.

    Raises:
        ConfigError: ``virtual_nodes`` is negative.
    """

    name = "CONSISTENT_HASH"

    def __init__(
        self, virtual_nodes: int = VIRTUAL_NODES, hash: Callable[[str], int] = md5_32
    ) -> None:
        if virtual_nodes < 0:
            raise ConfigError(f"{virtual_nodes} virtual nodes on a ring: at least 0")
        self._virtual_nodes = virtual_nodes
        self._hash = hash

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of one member."""
        ring = self._ring(clients)
        if position(client_id, queues, clients) is None or not ring:
            return []
        hashes = sorted(ring)
        return [queue for queue in queues if ring[self._node(queue, hashes)] == client_id]

    def _ring(self, clients: Sequence[str]) -> dict[int, str]:
        return {
            self._hash(f"{client}-{number}"): client
            for client in clients
            for number in range(self._virtual_nodes)
        }

    def _node(self, queue: MessageQueue, hashes: list[int]) -> int:
        key = (
            f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
            f"queueId={queue.queue_id}]"
        )
        return hashes[bisect_left(hashes, self._hash(key)) % len(hashes)]
