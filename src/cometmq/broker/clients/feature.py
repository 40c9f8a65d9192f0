"""The clients that are online, and the requests and jobs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.address import Endpoint
from cometmq.broker.checks import sent_to_slave
from cometmq.broker.clients.heartbeats import HeartbeatHandler
from cometmq.broker.clients.queue_locks import LockHandler, QueueLocks
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Connection, Request, Response, exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.clients.connections import ConnectionsHandler
    from cometmq.broker.clients.relay import RelayHandler
    from cometmq.broker.forwarding import Forwarding


SWEEP_S = 10.0


class ClientsFeature(BrokerFeature):
    """Keeps clients, and the queues that they have locked.

    Args:
        core: of the broker.
        forwarding: forwards locks to the elected master; None without a controller.
    """

    def __init__(self, core: Core, forwarding: Forwarding | None) -> None:
        super().__init__(core)
        self._forwarding = forwarding
        self.locks = QueueLocks(core.clock)

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of heartbeats, members, queue locks and relayed requests."""
        core = self._core
        heartbeats = HeartbeatHandler(core)
        locks = LockHandler(self.locks, groups=core.groups)
        lock, unlock = exclusive(locks.lock), exclusive(locks.unlock)
        if self._forwarding is not None:
            # A lock that only a slave grants does not exclude a member that locks at the master.
            lock = self._forwarding.wrap(lock, unreached=_refuse)
            unlock = self._forwarding.wrap(unlock, unreached=_refuse)

        @Deferred
        def connections() -> ConnectionsHandler:
            from cometmq.broker.clients.connections import ConnectionsHandler

            return ConnectionsHandler(core)

        @Deferred
        def relay() -> RelayHandler:
            from cometmq.broker.clients.relay import RelayHandler

            return RelayHandler(core)

        return Feature(
            {
                RequestCode.HEART_BEAT: heartbeats.heartbeat,
                RequestCode.UNREGISTER_CLIENT: heartbeats.unregister,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: heartbeats.consumer_list,
                RequestCode.CHECK_CLIENT_CONFIG: exclusive(heartbeats.check_client),
                RequestCode.LOCK_BATCH_MQ: lock,
                RequestCode.UNLOCK_BATCH_MQ: unlock,
                RequestCode.GET_CONSUMER_CONNECTION_LIST: connections.exclusive(
                    lambda h: h.of_consumers
                ),
                RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.exclusive(
                    lambda h: h.of_producers
                ),
                RequestCode.GET_ALL_PRODUCER_INFO: connections.exclusive(
                    lambda h: h.of_all_producers
                ),
                RequestCode.GET_CONSUMER_RUNNING_INFO: relay.handler(lambda h: h.running_info),
                RequestCode.CONSUME_MESSAGE_DIRECTLY: relay.handler(lambda h: h.consume_directly),
                RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relay.handler(
                    lambda h: h.consumer_status
                ),
            },
            _jobs(core, self.locks),
        )

    def connection_closed(self, connection: Connection) -> None:
        """Remove the members of the connection."""
        self._core.consumers.connection_closed(connection)
        self._core.producers.connection_closed(connection)


def _refuse(_: Request) -> Response:
    """Refuse a request that the master has to handle."""
    raise sent_to_slave()


def _jobs(core: Core, locks: QueueLocks) -> list[Job]:
    """Removal of silent clients and of expired queue locks."""

    def sweep_clients() -> None:
        core.consumers.sweep()
        core.producers.sweep()

    return [
        every(SWEEP_S, sweep_clients, "sweep-clients"),
        every(SWEEP_S, locks.sweep, "sweep-locks"),
    ]
