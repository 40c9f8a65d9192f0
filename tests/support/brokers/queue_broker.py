"""A scripted broker that has the records of queues, with the rare responses of real ones.

It serves pulls, bounds, times, statistics and group offsets from the same records, within limits
that a test can change while a reader runs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo
from cometmq.protocol.bodies.topic import TopicOffset, TopicStatsTable
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
)
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.headers.topic import GetTopicStatsInfoRequest
from cometmq.remoting import Request, Response
from support.brokers.scripted import Act, ScriptedBroker, ScriptedNameServer, route
from support.wire.message_records import record

Answer = Response | Act
Time = Callable[[list[int], int], int]


def first_not_before(times: list[int], wanted: int) -> int:
    """How brokers from 5.0 on find a time."""
    return next((i for i, time in enumerate(times) if time >= wanted), len(times))


def nearest(times: list[int], wanted: int) -> int:
    """How older ones do: the message nearest in time, the last of several with the same."""
    if not times:
        return 0
    best = min(abs(time - wanted) for time in times)
    return max(i for i, time in enumerate(times) if abs(time - wanted) == best)


class QueueBroker(ScriptedBroker):
    """Has queues of the topic ``t``; each offset holds a record, or nothing."""

    def __init__(self, name: str = "a") -> None:
        super().__init__(name)
        self.records: dict[int, dict[int, bytes]] = {}
        self.times: dict[int, dict[int, int]] = {}
        self.min: Counter[int] = Counter()
        self.max: Counter[int] = Counter()
        self.renumbers: tuple[int, int] | None = None
        """Which queue stores what is asked for as queue 0, and how much larger its offsets are."""
        self.limit = 32
        """Messages in one answer."""
        self.scan = 800
        """Offsets that one pull looks at."""
        self.empty = ""
        """The remark of pulls that pass over offsets without a message."""
        self.suggests = 0
        """The replica that the next pulls are sent to."""
        self.find_time: Time = first_not_before
        self.asked: Counter[int] = Counter()
        self.pulls: list[PullMessageRequest] = []
        self.signed = 0
        """How many pulls named an account."""
        self.waiting = 0
        self.waiting_max = 0
        self.script_of: dict[int, deque[Answer | None]] = {}
        """What comes instead of the right answers to the next requests, by code; None for those."""
        self.held: list[Request] = []
        self.holds = False
        """Whether pulls are answered only when `let_go` says so."""
        self.offsets: dict[str, dict[int, int]] = {}
        """What groups have committed: ``topic@group`` and queue."""
        self.quiet_queues: set[int] = set()
        """Queues that the statistics of the topic do not tell of."""
        table: dict[int, Callable[[Request], Response | None]] = {
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_MIN_OFFSET: self._min,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._at_time,
            RequestCode.GET_TOPIC_STATS_INFO: self._stats,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._offsets,
            RequestCode.QUERY_CONSUMER_OFFSET: self._committed,
        }
        for code, act in table.items():
            self.handlers[code] = self._as_scripted(code, act)

    def put(
        self, queue_id: int, count: int, *, body: bytes = b"x", time_ms: int = 1_000, gap: int = 0
    ) -> None:
        """Append messages, behind a gap of offsets that hold none.

        A queue begins at its first message, whatever the gap.
        """
        if self.max[queue_id] == self.min[queue_id]:
            self.min[queue_id] += gap
        self.max[queue_id] += gap
        for _ in range(count):
            offset = self.max[queue_id]
            facts = {"queue_id": queue_id, "queue_offset": offset, "log_offset": 1_000 * offset}
            times = {"born_time_ms": time_ms, "store_time_ms": time_ms}
            self.records.setdefault(queue_id, {})[offset] = record(body, b"t", **facts, **times)
            self.times.setdefault(queue_id, {})[offset] = time_ms
            self.max[queue_id] = offset + 1

    def expire(self, queue_id: int, up_to: int) -> None:
        """Forget the messages before an offset."""
        self.min[queue_id] = up_to
        for offset in [each for each in self.records.get(queue_id, {}) if each < up_to]:
            del self.records[queue_id][offset]

    def delete_log(self, queue_id: int, up_to: int) -> None:
        """Forget the messages before an offset, and keep the bounds of the queue.

        A broker does so between deleting files of its log and correcting the bounds of queues.
        """
        least = self.min[queue_id]
        self.expire(queue_id, up_to)
        self.min[queue_id] = least

    def copy_from(self, other: QueueBroker) -> None:
        """Hold what another broker holds."""
        self.records, self.times = other.records, other.times
        self.min, self.max = other.min, other.max

    def let_go(self) -> None:
        """Answer every pull that waits, and the next ones at once."""
        self.holds = False
        held, self.held = self.held, []
        for request in held:
            request.reply(self._answer(request))

    def _as_scripted(
        self, code: int, act: Callable[[Request], Response | None]
    ) -> Callable[[Request], Response | None]:
        def answer(request: Request) -> Response | None:
            self.asked[code] += 1
            self.moved.set()
            script = self.script_of.get(code)
            said = (script.popleft() if script else None) or act(request)
            if said is Act.HANG_UP:
                request.connection.abort()
            return None if isinstance(said, Act) else said

        return answer

    def _pull(self, request: Request) -> Response | None:
        self.pulls.append(request.header(PullMessageRequest))
        self.signed += "Signature" in request.command.fields
        if self.holds:
            self.held.append(request)
            self.waiting_max = max(self.waiting_max, len(self.held))
            return None
        return self._answer(request)

    def _answer(self, request: Request) -> Response:
        header = request.header(PullMessageRequest)
        queue_id, offset = header.queue_id, header.queue_offset
        if self.renumbers is not None:
            queue_id, offset = self.renumbers[0], offset - self.renumbers[1]
        low, high = self.min[queue_id], self.max[queue_id]
        if not low <= offset <= high:
            return self._say(ResponseCode.PULL_OFFSET_MOVED, low, queue_id)
        count = min(header.max_msg_nums, self.limit)
        held = self.records.get(queue_id, {})
        seen = min(high, offset + self.scan)
        found = [(at, held[at]) for at in range(offset, seen) if at in held][:count]
        if not found:
            gap = offset < high
            code = ResponseCode.PULL_RETRY_IMMEDIATELY if gap else ResponseCode.PULL_NOT_FOUND
            return self._say(code, seen, queue_id, remark=self.empty if gap else "")
        body = b"".join(record for _, record in found)
        return self._say(ResponseCode.SUCCESS, found[-1][0] + 1, queue_id, body)

    def _say(
        self, code: int, next_offset: int, queue_id: int, body: bytes = b"", remark: str = ""
    ) -> Response:
        more = self.renumbers[1] if self.renumbers else 0
        header = PullMessageResponse(
            suggest_which_broker_id=self.suggests,
            next_begin_offset=next_offset + more,
            min_offset=self.min[queue_id] + more,
            max_offset=self.max[queue_id] + more,
            offset_delta=more if self.renumbers else None,
        )
        return Response(code, remark or "as it is", header=header, body=body)

    def _max(self, request: Request) -> Response:
        queue_id = request.header(GetMaxOffsetRequest).queue_id
        return Response(header=GetMaxOffsetResponse(offset=self.max[queue_id]))

    def _min(self, request: Request) -> Response:
        queue_id = request.header(GetMinOffsetRequest).queue_id
        return Response(header=GetMinOffsetResponse(offset=self.min[queue_id]))

    def _at_time(self, request: Request) -> Response:
        header = request.header(SearchOffsetByTimestampRequest)
        low, high = self.min[header.queue_id], self.max[header.queue_id]
        held = self.times.get(header.queue_id, {})
        times = [held[offset] for offset in range(low, high)]
        found = low + self.find_time(times, header.timestamp)
        return Response(header=SearchOffsetByTimestampResponse(offset=found))

    def _stats(self, request: Request) -> Response:
        request.header(GetTopicStatsInfoRequest)
        table = {
            MessageQueue("t", self.name, queue_id): TopicOffset(
                min_offset=self.min[queue_id],
                max_offset=high,
                last_update_timestamp=self.times.get(queue_id, {}).get(high - 1, 0),
            )
            for queue_id, high in self.max.items()
            if queue_id not in self.quiet_queues
        }
        return Response(body=TopicStatsTable(offset_table=table).encode())

    def _offsets(self, request: Request) -> Response:
        return Response(body=ConsumerOffsetSerializeWrapper(offset_table=self.offsets).encode())

    def _committed(self, request: Request) -> Response:
        header = request.header(QueryConsumerOffsetRequest)
        queues = self.offsets.get(f"{header.topic}@{header.consumer_group}", {})
        if header.queue_id not in queues:
            return Response(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return Response(header=QueryConsumerOffsetResponse(offset=queues[header.queue_id]))


class QueueNameServer(ScriptedNameServer):
    """Knows the topic ``t``, and which brokers are registered."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: dict[str, dict[int, str]] = {}
        self.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = self._cluster

    def serve(self, replicas: dict[str, dict[int, str]], *, queues: int = 2) -> None:
        """Let these brokers, by name and id, be registered and have the topic."""
        self.registered = replicas
        told = route(dict.fromkeys(replicas, ""), queues=queues)
        for data in told.broker_datas:
            data.broker_addrs = replicas[data.broker_name]
        self.routes["t"] = told

    def _cluster(self, request: Request) -> Response:
        self.moved.set()
        table = {
            name: BrokerData(cluster="c", broker_name=name, broker_addrs=addresses)
            for name, addresses in self.registered.items()
        }
        names = {"c": sorted(self.registered)}
        return Response(
            body=ClusterInfo(broker_addr_table=table, cluster_addr_table=names).encode()
        )
