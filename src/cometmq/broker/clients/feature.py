"""Request handlers and jobs for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.clients.heartbeats import HeartbeatHandler
from cometmq.broker.clients.queue_locks import LockHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts
    from cometmq.broker.clients.connections import ConnectionsHandler
    from cometmq.broker.clients.relay import RelayHandler


SWEEP_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers of heartbeats, members, queue locks and relayed requests."""
    heartbeats = HeartbeatHandler(
        consumers=parts.consumers,
        producers=parts.producers,
        topics=parts.topics,
        groups=parts.groups,
        settings=parts.settings,
    )
    locks = LockHandler(parts.locks, groups=parts.groups)

    def make_connections() -> ConnectionsHandler:
        from cometmq.broker.clients.connections import ConnectionsHandler

        return ConnectionsHandler(parts.consumers, parts.producers)

    def make_relay() -> RelayHandler:
        from cometmq.broker.clients.relay import ConsumerRelay, RelayHandler

        return RelayHandler(
            ConsumerRelay(parts.consumers),
            consumers=parts.consumers,
            store=parts.store,
            cold_reads=parts.cold_reads,
            topics=parts.topics,
            groups=parts.groups,
            broker_name=parts.settings().broker_name,
        )

    connections, relay = Deferred(make_connections), Deferred(make_relay)
    return Feature(
        {
            RequestCode.HEART_BEAT: heartbeats.heartbeat,
            RequestCode.UNREGISTER_CLIENT: heartbeats.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: heartbeats.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: exclusive(heartbeats.check_client),
            RequestCode.LOCK_BATCH_MQ: exclusive(locks.lock),
            RequestCode.UNLOCK_BATCH_MQ: exclusive(locks.unlock),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: exclusive(
                connections.handler(lambda h: h.of_consumers)
            ),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: exclusive(
                connections.handler(lambda h: h.of_producers)
            ),
            RequestCode.GET_ALL_PRODUCER_INFO: exclusive(
                connections.handler(lambda h: h.of_all_producers)
            ),
            RequestCode.GET_CONSUMER_RUNNING_INFO: relay.handler(lambda h: h.running_info),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: relay.handler(lambda h: h.consume_directly),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: relay.handler(
                lambda h: h.consumer_status
            ),
        },
        _jobs(parts),
    )


def _jobs(parts: Parts) -> list[Job]:
    """Removal of silent clients and of expired queue locks."""

    def sweep_clients() -> None:
        parts.consumers.sweep()
        parts.producers.sweep()

    return [
        every(SWEEP_S, sweep_clients, "sweep-clients"),
        every(SWEEP_S, parts.locks.sweep, "sweep-locks"),
    ]
