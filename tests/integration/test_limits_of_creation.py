"""Topics and groups that requests create by using them: limits, and rights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from cometmq.access.signer import RequestSigner
from cometmq.broker.app import Broker
from cometmq.client import AdminClient
from cometmq.client.settings import ClientSettings
from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import RemotingClient
from support.brokers.pairs import Pairs
from support.checks.waiting import until

TIMEOUT_S = 60.0
SECRET = "a-long-secret"
ACCOUNTS = """
accounts:
- {accessKey: operations, secretKey: a-long-secret, admin: true}
- {accessKey: consumers, secretKey: a-long-secret, defaultGroupPerm: SUB}
- {accessKey: producers, secretKey: a-long-secret, defaultTopicPerm: PUB}
- {accessKey: creators, secretKey: a-long-secret, defaultTopicPerm: PUB|SUB,
   defaultGroupPerm: SUB, autoCreate: true}
- {accessKey: restricted, secretKey: a-long-secret, defaultTopicPerm: PUB, autoCreate: false}
"""
SEND = {"a": "p", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
PULL = {
    "topic": "TBW102", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
}  # fmt: skip


class Sender:
    """One connection of an account to a broker."""

    def __init__(self, address: str, account: str = "") -> None:
        credentials = f'{{"accessKey":"{account}","secretKey":"{SECRET}"}}'
        self._client = RemotingClient(
            name="sender", hooks=[RequestSigner(credentials)] if account else []
        )
        self._address = address
        self.close = self._client.close

    async def call(self, code: int, body: bytes = b"", **fields: str) -> Command:
        return await self._client.call(
            self._address, code, fields=fields, body=body, timeout=TIMEOUT_S
        )

    async def send(self, topic: str) -> Command:
        return await self.call(RequestCode.SEND_MESSAGE_V2, b"x", b=topic, **SEND)

    async def pull(self, group: str) -> Command:
        return await self.call(RequestCode.PULL_MESSAGE, consumerGroup=group, **PULL)

    async def heartbeat(self, *groups: str) -> Command:
        data = {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [],
                }
                for group in groups
            ],
        }
        return await self.call(RequestCode.HEART_BEAT, json.dumps(data).encode())


class World:
    """A broker, and connections to it."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        self.broker = broker
        self._stack = stack

    def connect(self, account: str = "") -> Sender:
        sender = Sender(self.broker.address, account)
        self._stack.push_async_callback(sender.close)
        return sender

    @property
    def groups(self) -> set[str]:
        return {name for name in self.broker.core.groups.all() if name.startswith("g")}

    @property
    def topics(self) -> set[str]:
        return {name for name in self.broker.core.topics.all() if name.startswith(("t", "%"))}


@asynccontextmanager
async def world(pairs: Pairs, name: str, **settings: str) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        broker = await pairs.start(name, **settings)
        yield World(broker, stack)


def plain(folder: Path, **settings: str) -> dict[str, str]:
    """Return the settings of a broker with plain accounts."""
    path = folder / "home" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return {"aclEnable": "true", "rocketmqHome": str(folder / "home"), **settings}


async def test_a_broker_creates_groups_up_to_its_limit(pairs: Pairs) -> None:
    async with world(pairs, "a") as made:
        present = len(made.broker.core.groups)
    await pairs.stop(made.broker)
    async with world(pairs, "a", autoCreateSubscriptionGroupMax=str(present + 2)) as made:
        client = made.connect()
        refused = await client.heartbeat(*(f"g{number}" for number in range(5)))
        assert (refused.code, made.groups) == (26, {"g0", "g1"})
        assert refused.remark.startswith(
            "group[g4] not exist, and it is not created: this broker has"
            f" {present + 2}, the limit is autoCreateSubscriptionGroupMax={present + 2}."
        )
        assert made.broker.core.consumers.group("g1") is not None  # those that exist are served
        assert made.topics == {"%RETRY%g0", "%RETRY%g1"}
        assert (await client.heartbeat("g0", "g1")).code == 0
        pulled = await client.pull("g5")
        assert (pulled.code, "autoCreateSubscriptionGroupMax" in pulled.remark) == (26, True)
        queue = {"brokerName": "pair", "queueId": 0, "topic": "TBW102"}
        lock = {"consumerGroup": "g5", "clientId": "c", "mqSet": [queue]}
        assert (await client.call(RequestCode.LOCK_BATCH_MQ, json.dumps(lock).encode())).code == 26
        assert (await client.send("%RETRY%g5")).code in (17, 26)
        assert made.groups == {"g0", "g1"}
        created = await client.call(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"g5"}'
        )
        assert (created.code, made.groups) == (0, {"g0", "g1", "g5"})  # administrators go on


async def test_a_broker_creates_topics_up_to_its_limit(pairs: Pairs) -> None:
    async with world(pairs, "a") as made:
        present = len(made.broker.core.topics)
    await pairs.stop(made.broker)
    async with world(pairs, "a", autoCreateTopicMax=str(present + 1)) as made:
        client = made.connect()
        codes = [(await client.send(topic)).code for topic in ("t0", "t1", "t0", "%RETRY%x")]
        assert (codes, made.topics) == ([0, 17, 0, 17], {"t0"})
        refused = await client.send("t1")
        assert "the limit is autoCreateTopicMax=" in refused.remark
        await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t0")
        assert (await client.send("t1")).code == 0
        # Retries of a group that exists, and its dead letters, are not refused.
        assert (await client.heartbeat("g")).code == 0
        assert made.topics == {"t1", "%RETRY%g"}


async def test_a_connection_creates_up_to_its_limit(pairs: Pairs) -> None:
    async with world(pairs, "a", autoCreateConnectionMax="2") as made:
        first, second = made.connect(), made.connect()
        assert (await first.send("t0")).code == 0
        assert (await first.heartbeat("g0", "g1")).code == 26
        refused = await first.send("t1")
        assert refused.code == 17
        assert "requests of this connection have created 2" in refused.remark
        assert (await second.send("t1")).code == 0
        assert (made.topics, made.groups) == ({"t0", "t1", "%RETRY%g0"}, {"g0"})


async def test_an_account_creates_up_to_its_limit_on_however_many_connections(
    pairs: Pairs, tmp_path: Path
) -> None:
    async with world(pairs, "a", **plain(tmp_path, autoCreateAccountMax="2")) as made:
        assert (await made.connect("consumers").heartbeat("g0")).code == 0
        assert (await made.connect("consumers").heartbeat("g1", "g2")).code == 26
        refused = await made.connect("consumers").heartbeat("g3")
        assert "requests of the account consumers have created 2" in refused.remark
        assert (await made.connect("producers").send("t0")).code == 0
        deleted = await made.connect("operations").call(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g0"
        )
        assert deleted.code == 0
        assert (await made.connect("consumers").heartbeat("g3")).code == 0
        assert made.groups == {"g1", "g3"}


async def test_plain_accounts_create_by_default_as_in_rocketmq(
    pairs: Pairs, tmp_path: Path
) -> None:
    async with world(pairs, "a", **plain(tmp_path)) as made:
        assert (await made.connect("producers").send("t0")).code == 0
        assert (await made.connect("consumers").heartbeat("g0")).code == 0
        refused = await made.connect("restricted").send("t1")
        assert refused.code == 1
        assert refused.remark.startswith("accessKey=restricted may not create the topic t1")
        assert (await made.connect("restricted").send("t0")).code == 0


async def test_plain_accounts_need_a_right_to_create_if_the_settings_want_it(
    pairs: Pairs, tmp_path: Path
) -> None:
    async with world(pairs, "a", **plain(tmp_path, autoCreateAclEnable="true")) as made:
        for account, code in (("producers", 1), ("creators", 0), ("operations", 0)):
            assert (await made.connect(account).send(f"t-{account}")).code == code
        for account, code in (("consumers", 1), ("creators", 0), ("operations", 0)):
            assert (await made.connect(account).heartbeat(f"g-{account}")).code == code
        refused = await made.connect("consumers").heartbeat("g-new")
        assert refused.remark.startswith("accessKey=consumers may not create the group g-new")
        assert (await made.connect("consumers").heartbeat("g-creators")).code == 0
        assert made.groups == {"g-creators", "g-operations"}


async def test_users_need_the_action_create_if_the_settings_want_it(pairs: Pairs) -> None:
    users = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": f'{{"username":"root","password":"{SECRET}"}}',
    }
    async with world(pairs, "a", **users) as made:
        root = ClientSettings(access_key="root", secret_key=SECRET)
        async with AdminClient(pairs.name_server.address, client=root) as admin:
            address = made.broker.address
            for name, actions in (("user", ["Pub", "Sub"]), ("creator", ["Pub", "Sub", "Create"])):
                await admin.create_user(address, UserInfo(username=name, password=SECRET))
                entries = [
                    PolicyEntryInfo(resource=resource, actions=actions, decision="Allow")
                    for resource in ("Topic:t*", "Group:g*")
                ]
                policy = AclInfo(subject=f"User:{name}", policies=[PolicyInfo(entries=entries)])
                await admin.create_policy(address, policy)
            assert (await made.connect("user").send("t0")).code == 0
            assert (await made.connect("user").heartbeat("g0")).code == 0
            await admin.set_broker_config(address, {"autoCreateAclEnable": "true"})
            for name, code in (("user", 16), ("creator", 0), ("root", 0)):
                assert (await made.connect(name).send(f"t-{name}")).code == code
                assert (await made.connect(name).heartbeat(f"g-{name}")).code == code
            refused = await made.connect("user").send("t1")
            assert refused.remark.startswith("User:user has no permission to access Topic:t1")
            assert (await made.connect("user").send("t0")).code == 0


async def test_what_was_not_created_is_logged_in_bounds(
    pairs: Pairs, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(pairs, "a", autoCreateConnectionMax="0") as made:
        client = made.connect()
        for number in range(50):
            assert (await client.send(f"t{number}")).code == 17
        lines = [text for text in caplog.messages if "is not created" in text]
        assert 0 < len(lines) <= 20
        assert "peer=127.0.0.1:" in lines[0]
        await until(lambda: made.broker.core.topics.get("t0") is None)
