"""A scripted broker that assigns queues and holds pops."""

from __future__ import annotations

from collections import Counter

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import MessageQueueAssignment, QueryAssignmentResponseBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import PopMessageRequest
from cometmq.remoting import Request, Response
from support.scripted import ScriptedBroker

QUEUE = MessageQueue("t", "a", 0)


class PopBroker(ScriptedBroker):
    """Assigns queues to every member that asks, and holds every pop."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned = [QUEUE]
        self.pops: Counter[int] = Counter()
        """How often each queue was popped, by its number."""
        self.handlers[RequestCode.QUERY_ASSIGNMENT] = self._assign
        self.handlers[RequestCode.POP_MESSAGE] = self._pop

    def _assign(self, request: Request) -> Response:
        entries = [MessageQueueAssignment(message_queue=queue) for queue in self.assigned]
        return Response(
            body=QueryAssignmentResponseBody(message_queue_assignments=entries).encode()
        )

    def _pop(self, request: Request) -> None:
        self.pops[request.header(PopMessageRequest).queue_id] += 1
        self.moved.set()
