"""Accounts with few rights get no message of a topic without a right, by any request."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.access.account_settings import AccountSettings
from cometmq.access.signer import RequestSigner
from cometmq.broker.app import Broker
from cometmq.client import Message, Producer
from cometmq.client.settings import ClientSettings
from cometmq.model.topic import DELAY_TOPIC, HALF_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import RemotingClient, Request, Response
from cometmq.system.platforms import SERVERS
from support.brokers.pairs import running_pairs
from support.checks.waiting import until

ACCOUNTS = """
accounts:
- {accessKey: operations, secretKey: secret-of-operations, admin: true}
- {accessKey: order-service, secretKey: secret-of-orders, topicPerms: [Orders=PUB|SUB],
   groupPerms: [order-service=SUB]}
- {accessKey: auditors, secretKey: secret-of-auditors, defaultTopicPerm: SUB,
   topicPerms: [Payments=DENY], groupPerms: [auditors=SUB]}
"""
SECRETS = {
    "operations": "secret-of-operations",
    "order-service": "secret-of-orders",
    "auditors": "secret-of-auditors",
}
BODY = b"a payment"
STRANGERS = 120


def credentials(account: str) -> str:
    return f'{{"accessKey":"{account}","secretKey":"{SECRETS[account]}"}}'


def send_fields(topic: str, properties: str, sys_flag: int = 0) -> dict[str, str]:
    values = ["p", topic, "TBW102", "4", "0", str(sys_flag), str(time.time_ns() // 1_000_000), "0"]
    return dict(zip("abcdefgh", values, strict=True)) | {"i": properties}


class Client:
    """A client of an account, and the messages that the broker sends it."""

    def __init__(self, account: str, address: str) -> None:
        self.received: list[bytes] = []
        handlers = dict.fromkeys((39, 307, 309, 326), self._take)
        self.remoting = RemotingClient(
            name="c", hooks=[RequestSigner(credentials(account))], handlers=handlers
        )
        self._address = address

    def _take(self, request: Request) -> Response:
        self.received.append(bytes(request.body))
        return Response()

    async def call(self, code: int, body: bytes = b"", **fields: str) -> Any:
        return await self.remoting.call(self._address, code, fields=fields, body=body, timeout=15)

    async def heartbeat(self, client_id: str, *, producer: str = "", consumer: str = "") -> None:
        group = {
            "groupName": consumer,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [],
        }
        data = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": producer}] if producer else [],
            "consumerDataSet": [group] if consumer else [],
        }
        response = await self.call(RequestCode.HEART_BEAT, json.dumps(data).encode())
        assert response.code == 0, response.remark


class Guarded:
    """A broker with accounts, and its clients."""

    def __init__(self, broker: Broker, names: str, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.names = names
        self._stack = stack

    def client(self, account: str) -> Client:
        client = Client(account, self.broker.address)
        self._stack.push_async_callback(client.remoting.close)
        return client

    async def send(self, message: Message) -> Any:
        settings = ClientSettings(access_key="operations", secret_key=SECRETS["operations"])
        async with Producer(self.names, group="p", client=settings) as producer:
            return await producer.send(message)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    path = tmp_path / "home" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    inner = credentials("operations")
    accounts = AccountSettings(
        acl_enable=True, rocketmq_home=tmp_path / "home", inner_client_credentials=inner
    )
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path, accounts=accounts))
        broker = await pairs.start(
            "a",
            aclEnable="true",
            rocketmqHome=str(tmp_path / "home"),
            innerClientAuthenticationCredentials=inner,
            transactionCheckInterval="500",
            transactionTimeOut="500",
        )
        yield Guarded(broker, pairs.name_server.address, stack)


async def test_a_member_gets_only_messages_of_topics_that_it_may_consume(guarded: Guarded) -> None:
    orders = guarded.client("order-service")
    await orders.heartbeat("c", consumer="order-service")
    codes = []
    for topic in ("Payments", "Orders"):
        receipt = await guarded.send(Message(topic, BODY))
        for named in ({}, {"topic": "Orders"}):
            response = await orders.call(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                consumerGroup="order-service",
                clientId="c",
                msgId=receipt.offset_message_id,
                **named,
            )
            codes.append(response.code)
    assert codes == [1, 1, 0, 0]
    assert len(orders.received) == 2
    assert b"Payments" not in orders.received[0]
    response = await orders.call(
        RequestCode.QUERY_CONSUME_QUEUE, topic="Payments", queueId="0", index="0", count="10"
    )
    assert response.remark == "No default permission for topic:Payments"


async def test_a_consumer_tells_of_itself_only_to_accounts_of_its_group(guarded: Guarded) -> None:
    auditors, orders = guarded.client("auditors"), guarded.client("order-service")
    await auditors.heartbeat("c", consumer="auditors")
    wanted = {"consumerGroup": "auditors", "clientId": "c", "jstackEnable": "true"}
    refused = await orders.call(RequestCode.GET_CONSUMER_RUNNING_INFO, **wanted)
    assert refused.remark == "No default permission for group:auditors"
    status = {"topic": "Orders", "group": "auditors"}
    refused = await orders.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **status)
    assert refused.remark == "No default permission for group:auditors"
    assert auditors.received == []
    allowed = await auditors.call(RequestCode.GET_CONSUMER_RUNNING_INFO, **wanted)
    assert (allowed.code, len(auditors.received)) == (0, 1)


async def test_a_right_to_all_topics_opens_no_message_that_waits(guarded: Guarded) -> None:
    await guarded.send(Message("Payments", BODY, delay_level=5))
    operations, auditors = guarded.client("operations"), guarded.client("auditors")
    half = send_fields("Payments", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01A1\x02", 4)
    assert (await operations.call(RequestCode.SEND_MESSAGE_V2, BODY, **half)).code == 0
    for topic, queue in (("Payments", 0), (DELAY_TOPIC, 4), (HALF_TOPIC, 0)):
        pull = {
            "consumerGroup": "auditors", "topic": topic, "queueId": str(queue),
            "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
        }  # fmt: skip
        refused = await auditors.call(RequestCode.PULL_MESSAGE, **pull)
        assert (refused.code, refused.body) == (1, b""), topic
        allowed = await operations.call(RequestCode.PULL_MESSAGE, **pull)
        assert (BODY in allowed.body) == (topic != "Payments"), topic


async def test_half_messages_reach_no_producer_that_may_not_send_to_their_topic(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    operations, orders = guarded.client("operations"), guarded.client("order-service")
    await orders.heartbeat("o", producer="p")
    half = send_fields("Payments", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01A1\x02", 4)
    assert (await operations.call(RequestCode.SEND_MESSAGE_V2, BODY, **half)).code == 0
    await until(lambda: "no check is sent, no member of the group may send" in caplog.text)
    await operations.heartbeat("c", producer="p")
    await until(lambda: operations.received)
    assert BODY in operations.received[0]
    assert orders.received == []
    half = send_fields("Orders", "TRAN_MSG\x01true\x02PGROUP\x01o\x02UNIQ_KEY\x01A2\x02", 4)
    assert (await orders.call(RequestCode.SEND_MESSAGE_V2, b"an order", **half)).code == 0
    await orders.heartbeat("o", producer="o")
    await until(lambda: orders.received)
    assert b"an order" in orders.received[0]


async def test_many_strangers_keep_no_check_from_the_producer_that_may_send(
    guarded: Guarded,
) -> None:
    SERVERS.allow_many_files()  # each stranger takes two: the server is in this process
    operations = guarded.client("operations")
    strangers = [guarded.client("order-service") for _ in range(STRANGERS)]
    for number, stranger in enumerate(strangers):
        await stranger.heartbeat(f"o{number}", producer="p")
    await operations.heartbeat("c", producer="p")
    half = send_fields("Payments", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01A1\x02", 4)
    assert (await operations.call(RequestCode.SEND_MESSAGE_V2, BODY, **half)).code == 0
    await until(lambda: operations.received)
    assert b"TRANSACTION_CHECK_TIMES\x011" in operations.received[0]  # by the first check
    assert not any(stranger.received for stranger in strangers)


async def test_replies_reach_the_account_that_named_the_client_first(guarded: Guarded) -> None:
    operations, orders = guarded.client("operations"), guarded.client("order-service")
    await operations.heartbeat("requester", producer="p")
    await orders.heartbeat("requester", producer="p")
    reply = send_fields("DefaultCluster_REPLY_TOPIC", "REPLY_TO_CLIENT\x01requester\x02")
    response = await operations.call(RequestCode.SEND_REPLY_MESSAGE_V2, BODY, **reply)
    assert (response.code, operations.received, orders.received) == (0, [BODY], [])
