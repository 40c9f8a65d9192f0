"""The fast path of pulls has the requests and results of the general path."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.client import ClientInstance, Filter, MessageQueue, Producer, PullResult
from cometmq.client import Message as ToSend
from cometmq.client._connection.instance import ClientCore, core_of
from cometmq.client._connection.security import Credentials, Signer
from cometmq.client._consuming.pulls import WRAPPED, Pull, pull_once, result_from
from cometmq.client._push.fast_path import PullFastPath, QueuePulls
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import CallTimeoutError, Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, SentBroker
from support.runner.build import compiled_modules
from support.wire import message_records

QUEUE = MessageQueue("t", "a", 1)
HEADER = {"suggestWhichBrokerId": 1, "nextBeginOffset": 8, "minOffset": 4, "maxOffset": 90}


def record(offset: int, body: bytes = b"x", tag: str = "A", sys_flag: int = 0) -> bytes:
    text = f"TAGS\x01{tag}".encode()
    return message_records.record(body, b"t", text, queue_offset=offset, sys_flag=sys_flag)


def response(*records: bytes, code: int = 0, remark: str | None = None, **fields: Any) -> Response:
    known = {name: str(value) for name, value in (HEADER | fields).items() if value is not None}
    return Response(code, remark, fields=known, body=b"".join(records))


def unread(_result: object) -> None:
    """Take a result that the caller gets as well."""


class PullBroker(ScriptedBroker):
    """Responds to pulls as it was told, and keeps their commands."""

    def __init__(self, *responses: Response) -> None:
        super().__init__()
        self.responses = deque(responses)
        self.commands: list[Command] = []
        self.handlers[RequestCode.PULL_MESSAGE] = self._pull
        self.handlers[RequestCode.LITE_PULL_MESSAGE] = self._pull

    def _pull(self, request: Request) -> Response | None:
        self.commands.append(request.command)
        self.moved.set()
        return self.responses.popleft() if self.responses else None


@asynccontextmanager
async def client_of(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[ClientCore]:
    async with ClientInstance(cluster.address, **options) as instance:
        core = core_of(instance)
        await core.brokers.connect(cluster.brokers[0].address)
        yield core


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The pulls that the general path made."""
    pulls: list[object] = []

    async def noted(*arguments: Any, **more: Any) -> PullResult:
        pulls.append(arguments)
        return await pull_once(*arguments, **more)

    monkeypatch.setattr("cometmq.client._push.fast_path.pull_once", noted)
    return pulls


def plain(core: ClientCore) -> QueuePulls:
    return PullFastPath.of(core).pulls_of(Pull("g", QUEUE, Filter.tags()))


PULLS: dict[str, Callable[[], tuple[Pull, int, int | None]]] = {
    "plain": lambda: (Pull("g", QUEUE, Filter.tags()), 5, None),
    "from the beginning": lambda: (Pull("g", QUEUE, Filter.tags()), 0, None),
    "largest offset": lambda: (Pull("g", QUEUE, Filter.tags()), 2**63 - 1, 2**63 - 1),
    "commits": lambda: (Pull("g", QUEUE, Filter.tags(), hold_ms=9), 5, 4),
    "held": lambda: (Pull("g", QUEUE, Filter.tags(), hold_ms=20_000), 5, None),
    "tags": lambda: (Pull("g", QUEUE, Filter.tags("a || \u00fc")), 5, None),
    "expression": lambda: (Pull("g", QUEUE, Filter.sql("a = 'x\"y\\'")), 5, None),
    "filter of the heartbeat": lambda: (
        Pull("g", QUEUE, Filter.tags("a"), send_filter=False),
        5,
        None,
    ),
    "limits": lambda: (Pull("g", QUEUE, Filter.tags(), 1024, max_bytes=2**31 - 1), 5, None),
    "lite": lambda: (Pull("g", QUEUE, Filter.tags(), lite=True), 5, None),
    "a group like a number of the head": lambda: (
        Pull("1444444444444", QUEUE, Filter.tags()),
        5,
        None,
    ),
    "a topic like two of them": lambda: (
        Pull("g", MessageQueue("1333333333-1222222222", "a", 1), Filter.tags()),
        5,
        None,
    ),
}


@pytest.mark.parametrize("language", ["JAVA", "PYTHON"])
@pytest.mark.parametrize("case", PULLS)
async def test_both_paths_send_the_same_request(
    case: str, language: str, general: list[object]
) -> None:
    pull, offset, commit_offset = PULLS[case]()
    commit = None if commit_offset is None else QueueOffset(commit_offset)
    broker = PullBroker(*(response(code=ResponseCode.PULL_NOT_FOUND) for _ in range(4)))
    async with ScriptedCluster([broker]) as cluster:
        settings = ClientSettings(language=language)
        async with client_of(cluster, settings=settings) as core:
            address, pulls = broker.address, PullFastPath.of(core).pulls_of(pull)
            for _ in range(2):
                await PullFastPath.of(core).pull(
                    address, pulls, QueueOffset(offset), commit, 5.0, unread
                )
            await pull_once(
                core.brokers,
                address,
                pull,
                QueueOffset(offset),
                commit_offset=commit,
                timeout=5,
            )

    first, second, expected = [
        (sent.code, sent.flag, sent.language, sent.version, sent.body, dict(sent.fields))
        for sent in broker.commands
    ]
    assert first == second == expected
    assert bool(general) == ("like" in case)


RESPONSES: dict[str, Response] = {
    "found": response(record(5), record(6)),
    "found, as Java says": response(record(5), remark="FOUND"),
    "nothing found": response(code=ResponseCode.PULL_NOT_FOUND),
    "nothing matches": response(code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    "offset moved": response(code=ResponseCode.PULL_OFFSET_MOVED, remark="moved"),
    "found, but empty": response(),
    "a tag with the same hash": response(record(5, tag="Aa"), record(6, tag="BB")),
    "wrapped batch": response(record(5, b"\x00", sys_flag=WRAPPED)),
    "compressed": response(record(5, b"damaged", sys_flag=int(SysFlag.COMPRESSED))),
    "cut record": response(record(5), record(6)[:-1]),
    "no record": response(b"x" * 200),
    "static topic": response(record(5), offsetDelta=100),
    "further fields": response(record(5), topicSysFlag=0, groupSysFlag=0),
    "further field that is no number": response(record(5), topicSysFlag="x"),
    "further field of 33 bits": response(record(5), groupSysFlag=2**31),
    "unknown field": response(record(5), extra="x"),
    "large numbers": response(record(5), maxOffset=2**63 - 1),
    "negative number": response(record(5), minOffset=-1),
    "number with a sign": response(record(5), minOffset="+1"),
    "number of 64 bits and more": response(record(5), maxOffset=2**63),
    "null": response(record(5), maxOffset="null"),
    "no number": response(record(5), nextBeginOffset="x"),
    "offsets that do not rise": response(record(6), record(6)),
    "a next offset before the last message": response(record(8)),
    "missing field": response(record(5), suggestWhichBrokerId=None),
    "refused": response(code=ResponseCode.NO_PERMISSION, remark="not for you"),
    "refused without a remark": response(code=ResponseCode.SYSTEM_BUSY),
    "unknown code": response(code=4711, remark="odd"),
}
FAST = {
    "further fields",
    "unknown field",
    "negative number",
    "found",
    "found, as Java says",
    "nothing found",
    "nothing matches",
    "offset moved",
    "found, but empty",
    "a tag with the same hash",
    "compressed",
}


@pytest.mark.parametrize("case", RESPONSES)
async def test_both_paths_read_the_same_from_a_response(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Command] = []

    def noted(response: Command, pull: Pull, offset: int) -> PullResult:
        commands.append(response)
        return result_from(response, pull, offset)

    monkeypatch.setattr("cometmq.client._push.fast_path.result_from", noted)
    pull = Pull("g", QUEUE, Filter.tags("Aa || A"))
    broker = PullBroker(RESPONSES[case], RESPONSES[case])
    async with ScriptedCluster([broker]) as cluster, client_of(cluster) as core:
        quick = await outcome(
            PullFastPath.of(core).pull(
                broker.address,
                PullFastPath.of(core).pulls_of(pull),
                QueueOffset(5),
                None,
                5.0,
                unread,
            )
        )
        expected = await outcome(
            pull_once(core.brokers, broker.address, pull, QueueOffset(5), timeout=5)
        )

    assert quick == expected
    assert bool(commands) == (case not in FAST or not compiled_modules())


async def outcome(pulling: Any) -> Any:
    try:
        result = await pulling
    except Exception as error:
        return type(error), str(error)
    messages = [(each, each.queue, dict(each.properties)) for each in result.messages]
    return result.status, messages, result.next_offset, result.min_offset, result.max_offset


async def test_many_pulls_at_once_get_their_own_responses() -> None:
    broker = PullBroker(
        *(response(record(number), nextBeginOffset=number + 1) for number in range(100))
    )
    async with ScriptedCluster([broker]) as cluster, client_of(cluster) as core:
        path, address = PullFastPath.of(core), broker.address
        results = await asyncio.gather(
            *(
                path.pull(address, plain(core), QueueOffset(number), None, 5.0, unread)
                for number in range(100)
            )
        )

    asked = [int(command.fields["queueOffset"]) for command in broker.commands]
    assert asked == list(range(100))
    assert [result.messages[0].queue_offset for result in results] == asked


async def test_a_cancelled_pull_leaves_the_connection_as_it_is() -> None:
    broker = PullBroker()
    async with ScriptedCluster([broker]) as cluster, client_of(cluster) as core:
        path, pulls = PullFastPath.of(core), plain(core)
        pulling = asyncio.ensure_future(
            path.pull(broker.address, pulls, QueueOffset(5), None, 60.0, unread)
        )
        await broker.until(lambda: len(broker.commands) == 1)
        connection = await core.remoting.connection(broker.address)
        assert connection.busy
        pulling.cancel()
        await asyncio.wait([pulling])

        assert not connection.busy
        broker.responses.append(response(record(7)))
        result = await path.pull(broker.address, pulls, QueueOffset(7), None, 5.0, unread)

    assert [each.queue_offset for each in result.messages] == [7]


async def test_silence_ends_in_time() -> None:
    broker = PullBroker()
    async with ScriptedCluster([broker]) as cluster, client_of(cluster) as core:
        with pytest.raises(CallTimeoutError, match=r"no response within 0\.1 s"):
            await PullFastPath.of(core).pull(
                broker.address, plain(core), QueueOffset(5), None, 0.1, unread
            )


async def test_a_broker_that_goes_away_is_asked_again(general: list[object]) -> None:
    away = response(code=ResponseCode.GO_AWAY)
    broker = PullBroker(away, away, response(record(5)))
    async with ScriptedCluster([broker]) as cluster:
        settings = ClientSettings(reconnect_for_go_away=True)
        async with client_of(cluster, settings=settings) as core:
            result = await PullFastPath.of(core).pull(
                broker.address, plain(core), QueueOffset(5), None, 5.0, unread
            )

    assert len(result.messages) == 1
    assert len(general) == 1


async def test_hooks_lead_to_the_general_path(general: list[object]) -> None:
    broker, hooks = PullBroker(response(record(5))), [Signer(Credentials("a", "s"))]
    async with ScriptedCluster([broker]) as cluster, client_of(cluster, hooks=hooks) as core:
        await PullFastPath.of(core).pull(
            broker.address, plain(core), QueueOffset(5), None, 5.0, unread
        )

    assert len(general) == 1


@pytest.mark.parametrize("topic", ["1333333333", "1444444444-1111111111111"])
async def test_a_topic_like_a_number_of_the_head_gets_its_messages(topic: str) -> None:
    broker = SentBroker()
    async with ScriptedCluster([broker]) as cluster:
        routes = cluster.name_server.routes
        routes[topic] = routes["t"]
        async with Producer(cluster.address, group="g") as producer:
            for _ in range(3):
                await producer.send(ToSend(topic, b"x"))

    assert [send.topic for send in broker.sends] == [topic] * 3


async def test_a_refusal_is_an_error() -> None:
    broker = PullBroker(RESPONSES["refused"])
    async with ScriptedCluster([broker]) as cluster, client_of(cluster) as core:
        with pytest.raises(ResponseError, match="not for you"):
            await PullFastPath.of(core).pull(
                broker.address, plain(core), QueueOffset(5), None, 5.0, unread
            )
