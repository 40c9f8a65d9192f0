"""With access control only the account that has sent a timer message recalls it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from cometmq.access.account_settings import AccountSettings
from cometmq.access.signer import RequestSigner
from cometmq.broker.app import Broker
from cometmq.client import AdminClient, Message, Producer, ResponseError
from cometmq.client.settings import ClientSettings
from cometmq.model import property_names as names
from cometmq.model.topic import TIMER_TOPIC
from cometmq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import iter_records
from cometmq.remoting import RemotingClient
from support.brokers.pairs import Pairs, running_pairs
from support.checks.waiting import until

SECRET = "a-long-secret"
ACCOUNTS = """
accounts:
- {accessKey: operations, secretKey: a-long-secret, admin: true}
- {accessKey: sellers, secretKey: a-long-secret, defaultTopicPerm: PUB}
- {accessKey: customers, secretKey: a-long-secret, defaultTopicPerm: PUB}
"""
SEND = {"c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
TIMEOUT_S = 60.0


def credentials(account: str) -> str:
    return f'{{"accessKey":"{account}","secretKey":"{SECRET}"}}'


class Guarded:
    """A broker with accounts, and a producer of each account."""

    def __init__(self, pairs: Pairs, settings: dict[str, str], stack: AsyncExitStack) -> None:
        self._pairs = pairs
        self._settings = settings
        self._stack = stack
        self.broker: Broker | None = None

    async def start(self) -> None:
        """Start the broker; one that runs is stopped before."""
        if self.broker is not None:
            await self._pairs.stop(self.broker)
        self.broker = await self._pairs.start("a", **self._settings)

    async def producer(self, account: str) -> Producer:
        client = ClientSettings(access_key=account, secret_key=SECRET, instance_name=account)
        producer = Producer(self._pairs.name_server.address, group=account, client=client)
        return await self._stack.enter_async_context(producer)

    @property
    def address(self) -> str:
        assert self.broker is not None
        return self.broker.address

    async def admin(self, account: str) -> AdminClient:
        client = ClientSettings(access_key=account, secret_key=SECRET, instance_name="admin")
        admin = AdminClient(self._pairs.name_server.address, client=client)
        return await self._stack.enter_async_context(admin)

    async def send_raw(self, account: str, properties: str) -> None:
        """Send a message with properties that no application may set."""
        assert self.broker is not None
        client = RemotingClient(name="raw", hooks=[RequestSigner(credentials(account))])
        fields = {"a": account, "b": "Orders", "i": properties} | SEND
        code = RequestCode.SEND_MESSAGE_V2
        response = await client.call(
            self.broker.address, code, fields=fields, body=b"0", timeout=TIMEOUT_S
        )
        await client.close()
        assert response.code == 0, response.remark

    def properties(self, topic: str) -> dict[bytes, dict[str, str]]:
        """Return the properties of the messages of a topic, by their bodies."""
        assert self.broker is not None
        store = self.broker.core.store
        found = {}
        for _, queue_id in [key for key in store.queue_keys() if key[0] == topic]:
            for unit in store.written_units(topic, queue_id, 0):
                data = store.written_record_at(*unit)
                assert data is not None
                found |= {each.body: dict(each.properties) for each in iter_records(data)}
        return found


@pytest.fixture(params=["plain", "users"])
async def guarded(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Guarded]:
    """A broker with the accounts of a file of 4.x, or with users and policies of 5.x."""
    inner = credentials("operations")
    settings = {
        "innerClientAuthenticationCredentials": inner,
        "recallMessageEnable": "true",
        "timerPrecisionMs": "100",
    }
    is_plain = request.param == "plain"
    if is_plain:
        home = home_with_accounts(tmp_path)
        accounts = AccountSettings(
            acl_enable=True, rocketmq_home=home, inner_client_credentials=inner
        )
        settings |= {"aclEnable": "true", "rocketmqHome": str(home)}
    else:
        accounts = None
        first = json.dumps({"username": "operations", "password": SECRET})
        settings |= {"authenticationEnabled": "true", "authorizationEnabled": "true"}
        settings["initAuthenticationUser"] = first
    async with AsyncExitStack() as stack:
        pairs = await stack.enter_async_context(running_pairs(tmp_path, accounts=accounts))
        made = Guarded(pairs, settings, stack)
        await made.start()
        if not is_plain:
            await create_users(await made.admin("operations"), made.address)
        yield made


def home_with_accounts(folder: Path) -> Path:
    path = folder / "home" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return folder / "home"


async def create_users(admin: AdminClient, address: str) -> None:
    """Give users the rights that the accounts of the file have."""
    may_send = PolicyEntryInfo(resource="Topic:*", actions=["Pub"], decision="Allow")
    for name in ("sellers", "customers"):
        await admin.create_user(address, UserInfo(username=name, password=SECRET))
        policies = [PolicyInfo(entries=[may_send])]
        await admin.create_policy(address, AclInfo(subject=f"User:{name}", policies=policies))


async def recall(producer: Producer, handle: str | None) -> bool:
    """Recall a message; return whether that was allowed."""
    assert handle is not None
    try:
        await producer.recall("Orders", handle)
    except ResponseError as refused:
        if refused.code != 16 or "another account" not in refused.remark:
            raise
        return False
    return True


async def test_only_the_account_of_a_message_and_administrators_recall_it(
    guarded: Guarded,
) -> None:
    sellers, customers, operations = [
        await guarded.producer(account) for account in ("sellers", "customers", "operations")
    ]

    async def send(producer: Producer, body: bytes, **properties: str) -> str | None:
        message = Message("Orders", body, delay=3600, properties=properties)
        return (await producer.send(message)).recall_handle

    own, other = await send(sellers, b"own"), await send(sellers, b"other")
    of_operations = await send(operations, b"of operations")
    forged = await send(customers, b"forged", **{names.TIMER_SENDER: "sellers"})
    assert not await recall(customers, own)
    assert not await recall(sellers, of_operations)
    assert not await recall(sellers, forged)

    await guarded.start()  # the account is in the record

    waiting = guarded.properties(TIMER_TOPIC)
    assert {body: each[names.TIMER_SENDER] for body, each in waiting.items()} == {
        b"own": "sellers",
        b"other": "sellers",
        b"of operations": "operations",
        b"forged": "customers",
    }
    assert not await recall(customers, own)
    assert await recall(sellers, own)
    assert await recall(operations, other)


async def test_only_administrators_see_what_waits(guarded: Guarded) -> None:
    sellers = await guarded.producer("sellers")
    await sellers.send(Message("Orders", b"own", delay=3600))

    found = await (await guarded.admin("operations")).waiting_timers(guarded.address)

    assert [(each.topic, each.sender) for each in found] == [("Orders", "sellers")]
    with pytest.raises(ResponseError, match=r"(?i)permission"):
        await (await guarded.admin("sellers")).waiting_timers(guarded.address)


async def test_a_recall_of_another_account_that_is_sent_as_a_message_does_not_count(
    guarded: Guarded,
) -> None:
    sellers = await guarded.producer("sellers")
    for name, recaller in (("stays", "customers"), ("goes", "sellers")):
        receipt = await sellers.send(Message("Orders", name.encode(), delay=2))
        slot_ms = int(guarded.properties(TIMER_TOPIC)[name.encode()][names.TIMER_OUT_MS])
        properties = {
            names.TIMER_DEL_UNIQKEY: f"Orders+{receipt.message_id}",
            names.TIMER_DELIVER_MS: str(slot_ms + 1),
        }
        await guarded.send_raw(recaller, encode_properties(properties).decode())
    await sellers.send(Message("Orders", b"last", delay=2.5))

    await until(lambda: b"last" in guarded.properties("Orders"))

    assert guarded.properties("Orders").keys() == {b"stays", b"last"}
    properties = guarded.properties("Orders").values()
    assert all(names.TIMER_SENDER not in each for each in properties), "consumers do not see it"
