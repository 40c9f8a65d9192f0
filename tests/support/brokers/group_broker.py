"""A scripted broker that has the members, offsets, locks and pulls of a consumer group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.group import (
    GetConsumerListByGroupResponseBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.offset import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryConsumerOffsetRequest,
    QueryConsumerOffsetResponse,
    SearchOffsetByTimestampRequest,
    SearchOffsetByTimestampResponse,
    UpdateConsumerOffsetRequest,
)
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.remoting import Request, Response
from support.brokers.scripted import Act, ScriptedBroker

Answer = Response | Act


class GroupBroker(ScriptedBroker):
    """Knows one group. What is not told in advance is answered as a young empty broker would."""

    def __init__(self, name: str = "a") -> None:
        super().__init__(name)
        self.members: list[str] = []
        self.member_failures: deque[Response] = deque()
        """Answers to the next questions for members."""
        self.member_questions = 0
        self.bounds = (0, 0)
        """Of every queue."""
        self.at_time = 0
        self.asked_times: list[int] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.commits: list[UpdateConsumerOffsetRequest] = []
        self.refuse: dict[int, Response] = {}
        """Answers by request code that come instead of the right ones."""
        self.locked_by: dict[MessageQueue, str] = {}
        self.unlocks: list[UnlockBatchRequestBody] = []
        self.pulls: list[PullMessageRequest] = []
        self.pull_answers: deque[Answer] = deque()
        """Answers to the next pulls; a pull without one is held for good."""
        table: dict[int, Callable[[Request], Response | None]] = {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._at_time,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
            RequestCode.PULL_MESSAGE: self._pull,
        }
        for code, act in table.items():
            self.handlers[code] = self._unless_refused(code, act)

    def _unless_refused(
        self, code: int, act: Callable[[Request], Response | None]
    ) -> Callable[[Request], Response | None]:
        def answer(request: Request) -> Response | None:
            self.moved.set()
            return self.refuse[code] if code in self.refuse else act(request)

        return answer

    def _list(self, request: Request) -> Response:
        self.member_questions += 1
        if self.member_failures:
            return self.member_failures.popleft()
        body = GetConsumerListByGroupResponseBody(consumer_id_list=self.members)
        return Response(body=body.encode())

    def _committed(self, request: Request) -> Response:
        header = request.header(QueryConsumerOffsetRequest)
        offset = self.committed.get((header.topic, header.queue_id))
        if offset is None:
            return Response(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return Response(header=QueryConsumerOffsetResponse(offset=offset))

    def _commit(self, request: Request) -> Response:
        header = request.header(UpdateConsumerOffsetRequest)
        self.commits.append(header)
        self.committed[header.topic, header.queue_id] = header.commit_offset
        return Response()

    def _max(self, request: Request) -> Response:
        request.header(GetMaxOffsetRequest)
        return Response(header=GetMaxOffsetResponse(offset=self.bounds[1]))

    def _min(self, request: Request) -> Response:
        request.header(GetMinOffsetRequest)
        return Response(header=GetMinOffsetResponse(offset=self.bounds[0]))

    def _at_time(self, request: Request) -> Response:
        self.asked_times.append(request.header(SearchOffsetByTimestampRequest).timestamp)
        return Response(header=SearchOffsetByTimestampResponse(offset=self.at_time))

    def _lock(self, request: Request) -> Response:
        body = LockBatchRequestBody.decode(request.body)
        for queue in body.mq_set:
            self.locked_by.setdefault(queue, body.client_id)
        mine = [queue for queue in body.mq_set if self.locked_by[queue] == body.client_id]
        return Response(body=LockBatchResponseBody(lock_ok_mq_set=mine).encode())

    def _unlock(self, request: Request) -> Response:
        body = UnlockBatchRequestBody.decode(request.body)
        self.unlocks.append(body)
        for queue in body.mq_set:
            self.locked_by.pop(queue, None)
        return Response()

    def _pull(self, request: Request) -> Response | None:
        self.pulls.append(request.header(PullMessageRequest))
        answer = self.pull_answers.popleft() if self.pull_answers else Act.STAY_SILENT
        if answer is Act.HANG_UP:
            request.connection.abort()
        return None if isinstance(answer, Act) else answer


def pulled(
    code: int,
    next_offset: int,
    *,
    bounds: tuple[int, int] = (0, 100),
    replica: int = 0,
    records: Sequence[bytes] = (),
) -> Response:
    """The answer to a pull."""
    header = PullMessageResponse(
        suggest_which_broker_id=replica,
        next_begin_offset=next_offset,
        min_offset=bounds[0],
        max_offset=bounds[1],
    )
    return Response(code, "as scripted", header=header, body=b"".join(records))
