"""Handles OPEN_PRODUCER_SESSION (420001): makes one attempt the only one that can send.

RocketMQ has nothing like it.
"""

from __future__ import annotations

from cometmq.broker.checks import check_number, invalid, sent_to_slave
from cometmq.broker.core import Core
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.prerequisites import PrerequisiteError, with_prerequisites
from cometmq.broker.producer_sessions.refusals import EPOCH_MAX, FencedError
from cometmq.broker.producer_sessions.sessions import Opening, ProducerSessions
from cometmq.broker.thread_calls import SharedCall
from cometmq.model.errors import ResponseError, StoreError
from cometmq.model.topic import RETRY_PREFIX, TOPICS_OF_WAITING
from cometmq.protocol.bodies.producer_session import ProducerSessionBounds
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.producer_session import (
    OpenProducerSessionRequest,
    OpenProducerSessionResponse,
)
from cometmq.remoting import Request, Response
from cometmq.store import SegmentNotReadyError

NAME_CHARS_MAX = 255
"""The longest name of a session or of an attempt."""


class ProducerSessionHandler:
    """Opens producer sessions.

    Args:
        core: of the broker.
        sessions: the sessions.
        durability: what responses wait for.
    """

    def __init__(self, core: Core, sessions: ProducerSessions, durability: DurabilityWait) -> None:
        self._topics = core.topics
        self._role = core.role
        self._sessions = sessions
        self._durability = durability
        self._segment = SharedCall(core.store.wait_for_segment)
        self.open = with_prerequisites(self._open)
        """Handles one request, once what it needs was read or created."""

    def _open(self, request: Request) -> Response | None:
        """Open a session; respond when its record is as durable as a send.

        Raises:
            PrerequisiteError: the sessions have to be read, or a file of the log be created, first.
            ResponseError: it is refused.
        """
        if self._role.is_slave:
            raise sent_to_slave()
        if (refusal := self._durability.refusal) is not None:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, refusal.remark)
        opening = self._opening(request.header(OpenProducerSessionRequest))
        try:
            opened = self._sessions.open(opening)
        except FencedError as refused:
            header = OpenProducerSessionResponse(epoch=refused.newest)
            return Response(refused.code, refused.remark, header=header)
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except StoreError as problem:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem)) from problem
        header = OpenProducerSessionResponse(
            epoch=opened.epoch, brokers=";".join(opened.brokers), is_complete=opened.is_complete
        )
        bounds = ProducerSessionBounds(begins=opened.begins, ends=opened.ends)
        response = Response(header=header, body=bounds.encode())
        return self._durability.respond(request, opened.log_end, response)

    def _opening(self, header: OpenProducerSessionRequest) -> Opening:
        config = self._topics.require(header.topic)
        if header.topic in TOPICS_OF_WAITING or header.topic.startswith(RETRY_PREFIX):
            raise invalid(f"topic {header.topic}: expected a topic that applications send to")
        for what, name in (("session", header.session), ("owner", header.owner)):
            if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
                raise invalid(
                    f"{what} {name[:40]!r} of {len(name)} characters, expected 1 to"
                    f" {NAME_CHARS_MAX} printable ones"
                )
        check_number("batch", header.batch, 0, EPOCH_MAX)
        check_number("epoch", header.epoch, 0, EPOCH_MAX)
        check_number("expiryMs", header.expiry_ms, 0, EPOCH_MAX)
        return Opening(
            header.topic,
            header.session,
            header.owner,
            header.batch,
            header.epoch,
            tuple(filter(None, header.brokers.split(";"))),
            max(config.read_queue_nums, config.write_queue_nums),
            header.expiry_ms,
        )
