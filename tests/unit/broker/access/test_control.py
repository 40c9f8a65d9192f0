"""The needs of requests under plain access control, and requests that change accounts."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.access.gate import Gate
from cometmq.access.needs import (
    ADMINISTRATOR,
    NEEDS_MAX,
    NOTHING,
    Action,
    Need,
    Needs,
    ResourceType,
    group_need,
    topic_need,
)
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.rights import Kind, RequestNeeds
from cometmq.access.signer import RequestSigner
from cometmq.broker.access import feature
from cometmq.broker.access.account_handler import AccountHandler
from cometmq.broker.access.account_handler import _change as account_change
from cometmq.broker.access.control import LARGE_BYTES_MIN, AccessControl
from cometmq.broker.access.user_handler import _change as user_change
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.model.topic import DELAY_TOPIC, HALF_TOPIC, TOPICS_OF_WAITING
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.signature import SigningKey, signed_content
from cometmq.remoting import OutgoingCall, Request, Response, exclusive
from cometmq.remoting.slices import off_loop
from cometmq.remoting.slow_requests import begin_request
from cometmq.store import MessageStore
from cometmq.system.files import Files
from support.brokers.access import plain_control, stated_needs, tables_of_rights
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import opened, put
from support.wire.fake_transport import Wired

ACCOUNTS = """
accounts:
- {accessKey: Limited-1, secretKey: limited-secret, topicPerms: [T=PUB|SUB], groupPerms: [G=SUB]}
- {accessKey: Administrator, secretKey: admin-secret, admin: true}
"""
SECRETS = {"Limited-1": "limited-secret", "Administrator": "admin-secret"}
PUB, SUB = Action.PUB, Action.SUB
LONG_SEND = {
    "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
}  # fmt: skip
SHORT_SEND = dict(zip("abcdefgh", LONG_SEND.values(), strict=True))
PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "p"}],
    "consumerDataSet": [
        {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%H"}]}
    ],
}
BOTH_NAMES = {"consumerGroup": "G", "topic": "T"}
SEND_BACK = {"offset": "0", "group": "G", "delayLevel": "0"}
END = {
    "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0",
    "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "m",
}  # fmt: skip
QUERY = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
TOPICS = {0: "Stored", 64: "%RETRY%G"}
"""The topics of the records at these offsets of the log."""
STORED_ID = "7F000001" + "00002A9F" + "0" * 16


def needs(*resources: Any) -> Needs:
    return Needs(resources=resources)


NEEDS = [
    (10, LONG_SEND, {}, needs(topic_need("T", PUB))),
    (310, SHORT_SEND, {}, needs(topic_need("T", PUB))),
    (320, SHORT_SEND, {}, needs(topic_need("T", PUB))),
    (310, SHORT_SEND | {"b": "%RETRY%H", "a": "G"}, {}, needs(group_need("H"))),
    (310, SHORT_SEND | {"b": "%DLQ%G"}, {}, needs(topic_need("%DLQ%G", PUB))),
    (325, SHORT_SEND, {}, needs(topic_need("T", PUB))),
    (325, SHORT_SEND | {"b": "c_REPLY_TOPIC"}, {}, NOTHING),
    (324, LONG_SEND | {"topic": "d_REPLY_TOPIC"}, {}, needs(topic_need("d_REPLY_TOPIC", PUB))),
    (11, PULL, {}, needs(topic_need("T", SUB), group_need("G"))),
    (361, PULL, {}, needs(topic_need("T", SUB), group_need("G"))),
    (11, PULL | {"topic": "%RETRY%G"}, {}, needs(group_need("G"))),
    (12, QUERY, {}, needs(topic_need("T", SUB))),
    (15, BOTH_NAMES | {"queueId": "0", "commitOffset": "0"}, {},
     needs(group_need("G"), topic_need("T", SUB))),
    (34, {}, HEARTBEAT, needs(group_need("G"), topic_need("T", SUB), group_need("H"))),
    (34, {}, {"clientID": "c"}, NOTHING),
    (35, {"clientID": "c", "consumerGroup": "G", "producerGroup": "p"}, {}, needs(group_need("G"))),
    (35, {"clientID": "c", "producerGroup": "p"}, {}, NOTHING),
    (38, {"consumerGroup": "G"}, {}, needs(group_need("G"))),
    (307, {"consumerGroup": "G", "clientId": "c"}, {}, needs(group_need("G"))),
    (223, {"group": "G", "topic": "T"}, {}, needs(group_need("G"))),
    (309, {"consumerGroup": "G", "msgId": STORED_ID}, {},
     needs(group_need("G"), topic_need("Stored", SUB))),
    (309, BOTH_NAMES | {"msgId": STORED_ID}, {},
     needs(group_need("G"), topic_need("T", SUB))),
    (321, BOTH_NAMES, {}, needs(topic_need("T", SUB))),
    (41, {}, {"consumerGroup": "G", "clientId": "c", "mqSet": []}, needs(group_need("G"))),
    (42, {}, {"consumerGroup": "G", "clientId": "c", "mqSet": []}, needs(group_need("G"))),
    (36, SEND_BACK, {}, needs(group_need("G"), topic_need("Stored", SUB))),
    (36, SEND_BACK | {"offset": "64"}, {}, needs(group_need("G"))),
    (37, END, {}, needs(topic_need("Stored", PUB))),
    (33, {"offset": "0", "topic": "T"}, {}, needs(topic_need("Stored", SUB))),
    (353, {"group": "G", "topic": "T"}, {}, NOTHING),
    (353, {"group": "G", "topic": "T", "readable": "false"}, {}, ADMINISTRATOR),
    (906, {}, {}, NOTHING),
    (906, {"masterAddress": "10.0.0.1:1"}, {}, ADMINISTRATOR),
    (370, {"topic": "T"}, {}, needs(topic_need("T", PUB))),
    *((code, BOTH_NAMES, {}, needs(group_need("G"), topic_need("T", SUB))) for code in
      (200050, 200051, 200052, 200053, 200054, 200055)),
    (200151, {}, {"acks": [{"c": "G", "t": "T"}, {"c": "H", "t": "%RETRY%H"}]},
     needs(group_need("G"), topic_need("T", SUB), group_need("H"))),
    (14, BOTH_NAMES, {}, needs(group_need("G"))),
    *((code, {"consumerGroup": "G", "topic": "T"}, {}, needs(group_need("G"))) for code in
      (203, 208)),
    *((code, {"group": "G", "topic": "T"}, {}, needs(group_need("G"))) for code in
      (303, 343, 345)),
    (315, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@G"}, {}, needs(group_need("G"))),
    (315, {"statsName": "QUEUE_GET_SIZE", "statsKey": "T@1@G"}, {}, needs(group_need("G"))),
    (315, {"statsName": "GROUP_GET_NUMS", "statsKey": "G"}, {}, needs(group_need("G"))),
    (315, {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@G"}, {}, needs(group_need("G"))),
    (315, {"statsName": "QUEUE_PUT_NUMS", "statsKey": "T@1"}, {}, NOTHING),
    (315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}, {}, NOTHING),
    (315, {"statsName": "BROKER_GET_NUMS", "statsKey": "c"}, {}, NOTHING),
    (30, {"topic": "T"}, {}, NOTHING),
    (31999, {}, {}, ADMINISTRATOR),
    *((code, {}, {}, ADMINISTRATOR) for code in (17, 18, 25, 200, 207, 215, 222, 225, 306, 314,
      316, 323, 329, 50, 51, 53, 54, 301, 905, 1008, 26, 43, 52, 308, 317, 2003, 3004)),
]  # fmt: skip


def plain_needs() -> RequestNeeds:
    return stated_needs(Kind.PLAIN, TOPICS.get)


def request(code: int, fields: dict[str, str], body: Any = None) -> Request:
    raw = json.dumps(body).encode() if body else b""
    return Request(Command(code, fields=fields, body=raw), Wired().connection)


@pytest.mark.parametrize(("code", "fields", "body", "wanted"), NEEDS)
async def test_each_request_needs_what_it_uses(
    code: int, fields: dict[str, str], body: Any, wanted: Needs
) -> None:
    assert plain_needs().of(request(code, fields, body)) == wanted


ANY_OF = {"P": PUB, "S": SUB, "C": Action.CREATE, "U": Action.UPDATE, "D": Action.DELETE,
          "G": Action.GET}  # fmt: skip


def wanted(text: str) -> Needs:
    """Needs such as ``T:T=SG g:G=S c:c=G``: one of the actions on each resource."""
    kinds = {"t": ResourceType.TOPIC, "g": ResourceType.GROUP, "c": ResourceType.CLUSTER}
    every = []
    for part in text.split():
        resource, _, letters = part.partition("=")
        kind, _, name = resource.partition(":")
        actions = Action(sum(ANY_OF[letter] for letter in letters))
        every.append(Need(kinds[kind], name, actions))
    return Needs(resources=tuple(every))


NAMES = {"topic": "T", "group": "G"}
LOCK = {"consumerGroup": "G", "clientId": "c", "mqSet": [{"topic": "T"}, {"topic": "%RETRY%H"}]}
HALVES = {128: "Half"}
NEEDS_OF_USERS = [
    (10, LONG_SEND, {}, "t:T=P"),
    (310, SHORT_SEND | {"b": "%RETRY%H", "a": "G"}, {}, "g:H=S"),
    (320, SHORT_SEND, {}, "t:T=P"),
    (325, SHORT_SEND, {}, "t:T=P"),
    (325, SHORT_SEND | {"b": "c_REPLY_TOPIC"}, {}, ""),
    (370, {"topic": "T"}, {}, "t:T=P"),
    (105, {"topic": "T"}, {}, "t:T=PSG"),
    (105, {"topic": "%RETRY%G"}, {}, "g:G=SG"),
    (11, PULL, {}, "t:T=S g:G=S"),
    (361, PULL | {"topic": "%RETRY%H"}, {}, "g:H=S g:G=S"),
    (12, QUERY, {}, "t:T=SG"),
    (14, BOTH_NAMES, {}, "t:T=SG g:G=SG"),
    (15, BOTH_NAMES, {}, "t:T=SU g:G=SU"),
    (34, {}, HEARTBEAT, "g:G=S t:T=S g:H=S"),
    (34, {}, {"clientID": "c"}, ""),
    (35, {"clientID": "c", "consumerGroup": "G"}, {}, "g:G=S"),
    (35, {"clientID": "c", "producerGroup": "p"}, {}, ""),
    (36, SEND_BACK, {}, "g:G=S t:Stored=S"),
    *((37, END | {"topic": topic, "commitLogOffset": "128"}, {}, "t:Half=P") for topic in
      ("T", "Half", HALF_TOPIC)),
    (37, END | {"commitLogOffset": "128"}, {}, "t:Half=P"),
    (33, {"offset": "0", "topic": "T"}, {}, "t:T=G t:Stored=G"),
    (33, {"offset": "64"}, {}, "g:G=G"),
    (41, {}, LOCK, "g:G=S t:T=S g:H=S"),
    (42, {}, LOCK, "g:G=S t:T=S g:H=S"),
    (46, {}, {"clientId": "c", "group": "G", "subscriptionData": {"topic": "T"}}, "g:G=S t:T=S"),
    (17, {"topic": "T"}, {}, "t:T=C"),
    (17, {"topic": "%RETRY%G"}, {}, "g:G=C"),
    (18, {}, {"topicConfigList": [{"topicName": "A"}, {"topicName": "B"}]}, "t:A=C t:B=C"),
    (215, {"topic": "T"}, {}, "t:T=D"),
    (200, {}, {"groupName": "G"}, "g:G=CU"),
    (225, {}, {"groupConfigList": [{"groupName": "G"}, {"groupName": "H"}]}, "g:G=CU g:H=CU"),
    (207, {"groupName": "G"}, {}, "g:G=D"),
    (208, {"consumerGroup": "G"}, {}, "g:G=G"),
    (208, {"consumerGroup": "G", "topic": "T", "topicList": "A;;B"}, {}, "g:G=G t:T=G t:A=G t:B=G"),
    (308, {"compareGroup": "G", "topic": "T", "filterGroups": "A,B"}, {},
     "t:T=G g:G=G g:A=G g:B=G"),
    (314, {"srcGroup": "Known", "destGroup": "G", "topic": "T"}, {}, "t:T=U g:G=U g:Known=G"),
    (314, {"srcGroup": "Unknown", "destGroup": "G"}, {}, "g:G=U"),
    (323, {"topic": "T", "msgId": STORED_ID}, {}, "t:T=U t:Stored=U"),
    (309, BOTH_NAMES, {}, "g:G=S t:T=S"),
    (309, {"consumerGroup": "G", "msgId": STORED_ID}, {}, "g:G=S t:Stored=S"),
    (309, BOTH_NAMES | {"msgId": STORED_ID}, {}, "g:G=S t:T=S"),
    (323, {}, {}, "c:c=U"),
    (354, {"topic": "T"}, {}, "t:T=G"),
    (354, {}, {}, "c:c=G"),
    (901, {"clusterName": "d", "brokerName": "b"}, {}, "c:d=G"),
    (901, {}, {}, "c:c=G"),
    (200151, {}, {"acks": [{"c": "G", "t": "T"}, {"c": "H", "t": "U"}]},
     "g:G=S t:T=S g:H=S t:U=S"),
    *((code, {"topic": "T"}, {}, "t:T=G") for code in (29, 30, 31, 32, 202, 300, 351)),
    *((code, NAMES, {}, "t:T=G g:G=G") for code in (223, 303, 345)),
    *((code, NAMES, {}, "t:T=U g:G=U") for code in (222, 353)),
    *((code, {"group": "G"}, {}, "g:G=G") for code in (343, 352)),
    *((code, BOTH_NAMES, {}, "t:T=S g:G=S") for code in (200050, 200051, 200052, 200053, 200054)),
    *((code, {}, {}, "c:c=G") for code in (21, 26, 28, 43, 45, 52, 54, 201, 204, 305, 315, 317,
      328, 907, 3004, 3005, 3009, 3010)),
    *((code, {}, {}, "c:c=U") for code in (25, 50, 51, 53, 301, 306, 316, 329, 905, 906, 908,
      1008, 2001, 2002, 2004, 3001, 3002, 3003, 3006, 3007, 3008)),
]  # fmt: skip


def needs_of_users() -> RequestNeeds:
    return stated_needs(Kind.USERS, TOPICS.get, HALVES.get, lambda group: group == "Known")


@pytest.mark.parametrize(("code", "fields", "body", "text"), NEEDS_OF_USERS)
async def test_each_request_of_a_user_needs_what_it_uses(
    code: int, fields: dict[str, str], body: Any, text: str
) -> None:
    assert needs_of_users().of(request(code, fields, body)) == wanted(text)


OF_NO_RECORD = [
    (33, {"offset": "9"}),
    (33, {"offset": "-1", "topic": "T"}),
    (36, SEND_BACK | {"offset": "9"}),
    (37, END | {"commitLogOffset": "9", "topic": "T"}),
    (309, {"consumerGroup": "G"}),
    (309, {"consumerGroup": "G", "msgId": "x"}),
    (309, {"consumerGroup": "G", "msgId": STORED_ID[:-1] + "9"}),
]


@pytest.mark.parametrize(("code", "fields"), OF_NO_RECORD)
async def test_a_request_about_a_message_that_is_not_there_is_refused(
    code: int, fields: dict[str, str]
) -> None:
    for of in (plain_needs().of, needs_of_users().of):
        assert "expected" in of(request(code, fields)).unknown


@pytest.mark.parametrize("of_half", [{}, {"commitLogOffset": "64"}])
async def test_users_decide_only_half_messages(of_half: dict[str, str]) -> None:
    needs = needs_of_users().of(request(37, END | of_half))
    assert "expected the offset of a message" in needs.unknown


async def test_users_resume_only_messages_that_are_there() -> None:
    for message_id in ("x", STORED_ID[:-1] + "9"):
        needs = needs_of_users().of(request(323, {"topic": "T", "msgId": message_id}))
        assert "expected" in needs.unknown


@pytest.mark.parametrize("topic", sorted(TOPICS_OF_WAITING))
async def test_only_an_administrator_consumes_messages_that_wait(topic: str) -> None:
    name = {"topic": topic}
    reads = [(11, PULL | name), (361, PULL | name), (12, QUERY | name), (321, BOTH_NAMES | name),
             (200050, BOTH_NAMES | name), (200051, BOTH_NAMES | name)]  # fmt: skip
    for of in (plain_needs().of, needs_of_users().of):
        for code, fields in reads:
            assert of(request(code, fields)).administrator, code
            assert not of(request(code, fields | {"topic": "T"})).administrator, code
    for code in (30, 105, 202):
        assert not needs_of_users().of(request(code, name)).administrator, code


def served_by_brokers() -> set[int]:
    """Every request that some broker serves, whatever its settings are."""
    names = set()
    for file in Path(feature.__file__).parent.parent.glob("*/feature.py"):
        names |= set(re.findall(r"RequestCode\.([A-Z0-9_]+)", file.read_text()))
    assert len(names) > 80
    return {int(RequestCode[name]) for name in names}


@pytest.mark.parametrize("needs", [plain_needs(), needs_of_users()])
def test_the_needs_of_every_request_that_a_broker_serves_are_stated(needs: RequestNeeds) -> None:
    assert served_by_brokers() - needs.codes == set()


@pytest.mark.parametrize("needs", [plain_needs(), needs_of_users()])
async def test_a_request_whose_needs_are_not_stated_needs_an_administrator(
    needs: RequestNeeds,
) -> None:
    assert needs.of(request(31999, {})) == ADMINISTRATOR
    control = AccessControl(Threads(), Gate(Threads(), 1), needs)
    control.take_rights(served_by_brokers(), {})
    with pytest.raises(ValueError, match=r"request codes \[31999\] .*rights\.py of its feature"):
        control.take_rights({*served_by_brokers(), 31999}, {})


def test_what_a_request_needs_is_stated_once() -> None:
    counts = Counter(code for table in tables_of_rights().values() for code in table)
    assert [code for code, count in counts.items() if count > 1] == []


def test_a_feature_states_what_its_own_requests_need() -> None:
    tables = tables_of_rights()
    for file in Path(feature.__file__).parent.parent.glob("*/feature.py"):
        names = re.findall(r"RequestCode\.([A-Z0-9_]+)", file.read_text())
        stated = tables.get(f"cometmq.broker.{file.parent.name}.rights", {})
        assert {int(RequestCode[name]) for name in names} == set(stated), file.parent.name


async def test_administration_has_what_the_reference_has_and_more() -> None:
    for code in (17, 25, 200, 207, 215):
        assert plain_needs().of(request(code, {})) == ADMINISTRATOR


# --- the gate -----------------------------------------------------------------------------------


class Broker:
    """Handlers behind the gate."""

    def __init__(self, folder: Path) -> None:
        (folder / "conf").mkdir()
        (folder / "conf/plain_acl.yml").write_text(ACCOUNTS)
        self.store: MessageStore = opened(folder / "store")
        self.reads = ColdReads()
        self.accounts = PlainAccounts(folder, Files(), ManualClock())
        self.accounts.load()
        self.access = plain_control(self.accounts, self.store, self.reads)
        self.handled: list[int] = []
        handler = AccountHandler(
            self.accounts,
            settings=lambda: BrokerSettings(broker_name="b", broker_cluster_name="c"),
            address="10.0.0.1:10911",
        )
        handlers: dict[int, Any] = dict.fromkeys((16, 33, 34, 36, 37, 310), self._handle)
        handlers |= {
            50: exclusive(handler.put_account),
            51: exclusive(handler.delete_account),
            52: handler.versions,
            53: exclusive(handler.put_addresses),
            54: handler.show,
        }
        self.wired = Wired(handlers, guard=self.access.guard)

    def _handle(self, incoming: Request) -> Response:
        self.handled.append(incoming.code)
        return Response()

    async def call(
        self, code: int, fields: dict[str, str], body: bytes = b"", key: str = "Administrator"
    ) -> Command:
        """Send a signed request; an empty key sends it as it is."""
        if key:
            fields = fields | {"AccessKey": key}
            signature = SigningKey(SECRETS[key]).sign(signed_content(fields, body))
            fields["Signature"] = signature.decode()
        command = Command(code, opaque=len(self.wired.answers), fields=fields or None, body=body)
        count = len(self.wired.answers)
        self.wired.transport.send(encode_command(command))
        return (await self.wired.answered(count + 1))[-1]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.reads.close()
    made.store.abandon()


async def test_the_gate_is_ahead_of_every_handler(broker: Broker) -> None:
    for code in (310, 34, 31999, 50):
        assert (await broker.call(code, {}, key="")).remark == "No accessKey is configured"
    assert broker.handled == []
    for key in SECRETS:
        assert (await broker.call(31999, {}, key=key)).code == 3
    assert (await broker.call(16, {}, key="Limited-1")).remark == (
        "Need admin permission for request code=16, but accessKey=Limited-1 is not"
    )
    assert broker.handled == []


async def test_the_topic_of_a_named_message_is_that_of_its_record(broker: Broker) -> None:
    offsets = {topic: put(broker.store, b"x", topic=topic).log_offset for topic in ("T", "Other")}
    for code, fields in ((33, {"offset": ""}), (36, SEND_BACK), (37, END)):
        name = "commitLogOffset" if code == 37 else "offset"
        for topic, expected in (("T", 0), ("Other", 1)):
            at = fields | {name: str(offsets[topic])}
            response = await broker.call(code, at, key="Limited-1")
            assert (response.code, code in broker.handled) == (expected, True), (code, topic)
    assert broker.handled == [33, 36, 37]


async def test_a_message_that_waits_has_the_topic_that_it_waits_for(broker: Broker) -> None:
    half = put(broker.store, b"x", topic=HALF_TOPIC, properties={"REAL_TOPIC": "T"})
    other = put(broker.store, b"x", topic=HALF_TOPIC, properties={"REAL_TOPIC": "Other"})
    delayed = put(broker.store, b"x", topic=DELAY_TOPIC, properties={"REAL_TOPIC": "Other"})
    codes = [
        (await broker.call(33, {"offset": str(stored.log_offset)}, key="Limited-1")).code
        for stored in (half, other, delayed)
    ]
    assert codes == [0, 1, 1]


async def test_large_heartbeats_are_checked_too(broker: Broker) -> None:
    subscriptions = [{"topic": "T", "subString": "x" * 100} for _ in range(LARGE_BYTES_MIN // 100)]
    for topic, code in (("T", 0), ("Other", 1)):
        consumer = {
            "groupName": "G",
            "subscriptionDataSet": [*subscriptions, {"topic": topic}],
        }
        body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
        assert len(body) >= LARGE_BYTES_MIN
        response = await broker.call(34, {}, body, key="Limited-1")
        assert response.code == code
    assert broker.handled == [34]


def heartbeat(*topics: str) -> bytes:
    subscriptions = [{"topic": topic} for topic in topics]
    consumer = {"groupName": "G", "subscriptionDataSet": subscriptions}
    return json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()


async def test_a_request_that_names_too_many_topics_is_refused(broker: Broker) -> None:
    most = ["T"] * (NEEDS_MAX - 1)
    assert (await broker.call(34, {}, heartbeat(*most), key="Limited-1")).code == 0
    response = await broker.call(34, {}, heartbeat(*most, "T"), key="Limited-1")
    assert response.code == 1
    assert f"expected at most {NEEDS_MAX}" in str(response.remark)
    assert broker.handled == [34]


async def test_an_account_that_is_deleted_during_a_check_is_refused(broker: Broker) -> None:
    release = threading.Event()
    holding = asyncio.ensure_future(off_loop(lambda: release.wait(60.0)))
    body = heartbeat(*["T"] * (LARGE_BYTES_MIN // 10))
    assert len(body) >= LARGE_BYTES_MIN
    response = asyncio.ensure_future(broker.call(34, {}, body, key="Limited-1"))
    for _ in range(10):  # it is sent, identified, and waits for the thread
        await asyncio.sleep(0)
    broker.accounts.delete_account("Limited-1")
    release.set()
    await holding
    assert "No acl config" in str((await response).remark)
    assert broker.handled == []


class Threads:
    """Accounts that note in which threads they decide."""

    signing_key = None
    may_do_everything = False

    def __init__(self) -> None:
        self.state: object = None
        self.decided: list[threading.Thread] = []

    def sender_of(self, connection: Any, access_key: str) -> Threads:
        return self

    def refusal(self, code: int, needs: Needs) -> str | None:
        self.decided.append(threading.current_thread())
        return None


async def test_a_long_list_of_needs_is_decided_off_the_event_loop() -> None:
    accounts = Threads()
    control = AccessControl(accounts, Gate(accounts, 1), plain_needs())
    wired = Wired({34: lambda incoming: Response()}, guard=control.guard)
    body = heartbeat(*(f"topic-{number}" for number in range(LARGE_BYTES_MIN // 10)))
    wired.transport.send(encode_command(Command(34, opaque=1, body=body)))
    assert (await wired.answered(1))[0].code == 0
    assert len(accounts.decided) == 1
    assert threading.current_thread() not in accounts.decided


@pytest.mark.parametrize("needs", [plain_needs(), needs_of_users()])
async def test_no_right_opens_a_request_about_a_message_that_is_not_there(
    needs: RequestNeeds,
) -> None:
    accounts = Threads()
    control = AccessControl(accounts, Gate(accounts, 16), needs)
    for code, fields in OF_NO_RECORD:
        with pytest.raises(ResponseError, match="expected") as refusal:
            control.guard(request(code, fields), lambda incoming: Response())
        assert refusal.value.code == 1


async def test_refusals_are_logged_without_secrets_and_in_bounds(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        response = await broker.call(310, SHORT_SEND | {"b": "Other"}, b"x", key="Limited-1")
        assert response.remark == "No default permission for topic:Other"
    lines = [line for line in caplog.messages if "access refused" in line]
    assert 0 < len(lines) <= 20
    assert "peer=" in lines[0]
    assert "topic:Other" in lines[0]
    assert not any(secret in caplog.text for secret in SECRETS.values())


# --- signed requests of a broker ----------------------------------------------------------------


def test_a_broker_signs_with_its_account() -> None:
    signer = RequestSigner('{"accessKey":"Limited-1","secretKey":"limited-secret"}')
    call = OutgoingCall(21, {"topic": "T"}, b"body")
    signer.before_request("10.0.0.1:10911", call)
    content = signed_content(call.fields, b"body")
    assert call.fields["AccessKey"] == "Limited-1"
    assert SigningKey("limited-secret").accepts(content, call.fields["Signature"].encode())


@pytest.mark.parametrize(
    "text", ["x", "{}", '{"accessKey":"a"}', '{"accessKey":"","secretKey":"hush"}', "[]", "hush"]
)
def test_bad_credentials_of_a_broker_are_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigError, match="expected") as caught:
        RequestSigner(text)
    assert "hush" not in str(caught.value)


# --- accounts by request ------------------------------------------------------------------------

NEW = {"accessKey": "Created-1", "secretKey": "created-secret"}


async def test_accounts_are_created_changed_shown_and_deleted(broker: Broker) -> None:
    fields = NEW | {"topicPerms": "T=PUB,U=PUB|SUB", "groupPerms": "", "defaultTopicPerm": "SUB"}
    assert (await broker.call(50, fields)).code == 0
    assert (await broker.call(50, NEW | {"groupPerms": "G=SUB", "admin": "true"})).code == 0
    response = await broker.call(54, {})
    shown = {each["accessKey"]: each for each in json.loads(response.body)["plainAccessConfigs"]}
    assert shown["Created-1"] == {
        "accessKey": "Created-1",
        "admin": True,
        "defaultTopicPerm": "SUB",
        "groupPerms": ["G=SUB"],
        "topicPerms": ["T=PUB", "U=PUB|SUB"],
    }
    assert not any(secret.encode() in response.body for secret in [*SECRETS.values(), "created"])
    assert (await broker.call(50, NEW | {"topicPerms": "T=SUB"})).code == 0
    entry = next(each for each in broker.accounts.entries() if each.access_key == "Created-1")
    assert (entry.topic_perms, entry.admin) == (["T=SUB"], True)
    assert (await broker.call(50, NEW | {"topicPerms": "", "admin": "false"})).code == 0
    entry = next(each for each in broker.accounts.entries() if each.access_key == "Created-1")
    assert (entry.topic_perms, entry.admin) == ([], False)
    assert (await broker.call(50, NEW | {"whiteRemoteAddress": "10.0.0.*"})).code == 0
    for changes, expected in (({}, "10.0.0.*"), ({"whiteRemoteAddress": ""}, "")):
        assert (await broker.call(50, NEW | changes)).code == 0
        entry = next(each for each in broker.accounts.entries() if each.access_key == "Created-1")
        assert (entry.white_remote_address, entry.default_topic_perm) == (expected, "SUB")
    assert (await broker.call(51, {"accessKey": "Created-1"})).code == 0
    assert (await broker.call(51, {"accessKey": "Created-1"})).code == 210


@pytest.mark.parametrize(
    "changes",
    [{"accessKey": "short"}, {"secretKey": "short"}, {"secretKey": ""}, {"topicPerms": "T=READ"},
     {"topicPerms": "T"}, {"groupPerms": "G=ANY"}, {"whiteRemoteAddress": "10.1"}],
)  # fmt: skip
async def test_a_bad_account_is_refused(broker: Broker, changes: dict[str, str]) -> None:
    response = await broker.call(50, NEW | changes)
    assert response.code == 209
    assert "expected" in (response.remark or "")
    assert "created-secret" not in (response.remark or "")
    assert len(broker.accounts.entries()) == 2


async def test_versions_name_the_broker_and_its_files(broker: Broker) -> None:
    await broker.call(50, NEW)
    assert (await broker.call(52, {}, key="Limited-1")).code == 1
    fields = (await broker.call(52, {})).fields
    assert fields["brokerName"] == "b"
    assert fields["clusterName"] == "c"
    assert fields["brokerAddr"] == "10.0.0.1:10911"
    assert json.loads(fields["version"])["counter"] == 1
    every = json.loads(fields["allAclFileVersion"])
    assert every[str(broker.accounts.main_file)]["counter"] == 1


async def test_white_addresses_are_replaced_by_request(broker: Broker) -> None:
    path = {"aclFileFullPath": str(broker.accounts.main_file)}
    assert (await broker.call(53, path | {"globalWhiteAddrs": "10.1.*.*, 10.2.0.1"})).code == 0
    assert broker.accounts.addresses() == ["10.1.*.*", "10.2.0.1"]
    for wrong in (
        path | {"globalWhiteAddrs": "x"},
        {"aclFileFullPath": "/", "globalWhiteAddrs": ""},
    ):
        assert (await broker.call(53, wrong)).code == 211
    assert broker.accounts.addresses() == ["10.1.*.*", "10.2.0.1"]


async def test_without_access_control_there_are_no_accounts() -> None:
    handler = AccountHandler(None, settings=BrokerSettings, address="")
    wired = Wired({50: exclusive(handler.put_account), 52: handler.versions})
    for code, refused in ((50, 209), (52, 1)):
        wired.transport.send(encode_command(Command(code, fields=NEW)))
        await wired.settled()
        assert wired.answers[-1].code == refused
        assert "aclEnable=false" in (wired.answers[-1].remark or "")


@pytest.mark.parametrize("change", [partial(account_change, 211), user_change])
async def test_the_wait_for_the_file_of_accounts_is_time_of_a_thread(
    change: Callable[[Callable[[], None]], Awaitable[None]],
) -> None:
    spent = begin_request()
    await change(lambda: None)

    assert list(spent) == ["thread"]
