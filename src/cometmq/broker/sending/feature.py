"""Request handlers and jobs for sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.sending.fast_path import SendFastPath
from cometmq.broker.sending.flow_control import MEASURE_INTERVAL_S
from cometmq.broker.sending.handler import SendHandler
from cometmq.broker.sending.reply import ReplyHandler
from cometmq.broker.sending.send_back import SendBackHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import RemotingSettings
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, endpoint: Endpoint) -> Feature:
    """Build the handlers of sends, send-backs and replies, and the measurement of flow control."""
    send = SendHandler(
        parts.store,
        parts.validation,
        parts.flow,
        parts.stats,
        parts.throughput,
        durability=parts.durability,
        store_host=endpoint.store_host,
        latencies=parts.latencies,
    )
    parts.flow.late_ms_logged = parts.configuration[RemotingSettings].slow_request_ms
    store_sends = with_prerequisites(send.handle, send.failed)
    if parts.forwarding is not None:
        store_sends = parts.forwarding.wrap(store_sends)
    back = SendBackHandler(
        parts.store,
        topics=parts.topics,
        groups=parts.groups,
        levels=parts.levels,
        stats=parts.stats,
        settings=parts.settings,
        role=parts.role,
        host=parts.address.host,
        store_host=endpoint.store_host,
        cold_reads=parts.cold_reads,
        durability=parts.durability,
    )
    reply = ReplyHandler(
        parts.store,
        parts.validation,
        parts.stats,
        durability=parts.durability,
        producers=parts.producers,
        settings=parts.settings,
        role=parts.role,
        clock=parts.clock,
        store_host=endpoint.store_host,
        store_address=endpoint.address,
    )
    return Feature(
        {
            RequestCode.SEND_MESSAGE: store_sends,
            RequestCode.SEND_MESSAGE_V2: store_sends,
            RequestCode.SEND_BATCH_MESSAGE: store_sends,
            RequestCode.CONSUMER_SEND_MSG_BACK: with_prerequisites(back.send_back),
            RequestCode.SEND_REPLY_MESSAGE: reply.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: reply.reply,
        },
        [every(MEASURE_INTERVAL_S, parts.flow.measure, "measure-flow")],
        fast_path=SendFastPath(
            send,
            check=None if parts.access is None else parts.access.for_sends(),
        ),
    )
