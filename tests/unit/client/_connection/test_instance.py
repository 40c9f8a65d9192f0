"""Instances that clients share, when they are closed, and the event loop they belong to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ClientError,
    ClientInstance,
    Message,
    Producer,
    PullConsumer,
)
from cometmq.client._connection.identity import outward_address
from cometmq.client._connection.instance import ClientCore, acquire_instance
from cometmq.client._connection.security import Credentials, Signer
from cometmq.client.errors import NameServerError
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command
from cometmq.protocol.signature import SigningKey
from cometmq.remoting import OutgoingCall, RpcHook

NOBODY = "127.0.0.1:1"
NAMED = ClientSettings(client_ip="10.0.0.1", instance_name="shop")


async def test_objects_with_one_client_id_share_an_instance_until_the_last_one_leaves() -> None:
    first, second = (
        acquire_instance(NOBODY, settings=NAMED),
        acquire_instance(NOBODY, settings=NAMED),
    )
    assert first.instance is second.instance
    assert first.instance.client_id == "10.0.0.1@shop"

    await first.open()
    await second.open()
    await first.close()
    assert second.instance.running
    await second.close()

    assert second.instance.closed
    assert acquire_instance(NOBODY, settings=NAMED).instance is not second.instance


@pytest.mark.parametrize("keep_name", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        {"namespace": "east"},
        {"namespace_v2": "east"},
        {"access_key": "someone", "secret_key": "else"},
        {"access_key": "me", "secret_key": "rotated"},
        {"access_key": "me", "secret_key": "hush", "security_token": "t"},
        {"use_tls": True},
        {"socks_proxies": '{"10.0.0.0/8": {"addr": "127.0.0.1:1"}}'},
        {"vip_channel": True},
        {"language": "JAVA"},
        {"http_domain": "127.0.0.1:1"},
    ],
    ids=str,
)
async def test_objects_share_only_if_all_that_says_where_and_who_is_the_same(
    other: dict[str, object], keep_name: bool
) -> None:
    same = {"client_ip": "10.0.0.1", "access_key": "me", "secret_key": "hush"}
    if not keep_name:
        same["instance_name"] = "shop"
    first, again, second = (
        acquire_instance(NOBODY, settings=ClientSettings(**same, **more), keep_name=keep_name)
        for more in ({}, {"idle_s": 7}, {})
    )
    another = acquire_instance(NOBODY, settings=ClientSettings(**same | other), keep_name=keep_name)

    assert first.instance is again.instance is second.instance
    assert another.instance is not first.instance
    assert another.instance.client_id == first.instance.client_id


async def test_objects_of_two_clusters_each_have_an_instance() -> None:
    first = acquire_instance([NOBODY, "127.0.0.1:2"], settings=NAMED)

    assert acquire_instance("127.0.0.1:2;127.0.0.1:1", settings=NAMED).instance is first.instance
    assert acquire_instance("127.0.0.1:3", settings=NAMED).instance is not first.instance


async def test_name_servers_beside_an_instance_of_others_are_refused() -> None:
    instance = ClientInstance(NOBODY)
    with pytest.raises(ConfigError, match=r"^name_servers=127\.0\.0\.1:2 beside an instance of "):
        Producer("127.0.0.1:2", instance=instance)
    assert Producer(NOBODY, instance=instance)


async def test_two_clients_with_one_id_are_no_two_members_of_a_group() -> None:
    """Brokers tell members apart by the client id, and so do the files of offsets."""
    other = ClientSettings(client_ip="10.0.0.1", instance_name="shop", language="JAVA")
    async with Producer(NOBODY, group="g", client=NAMED):
        with pytest.raises(ClientError, match=r"has a Producer of g already.*instance_name"):
            await Producer(NOBODY, group="g", client=other).start()
        async with Producer("127.0.0.1:2", group="g", client=NAMED):
            pass
    settings = ClientSettings(client_ip="10.0.0.1")
    async with PullConsumer(NOBODY, group="g", broadcast=True, client=settings):
        with pytest.raises(ClientError, match=r"has a PullConsumer of g already.*instance_name"):
            await PullConsumer("127.0.0.1:2", group="g", broadcast=True, client=settings).start()
        async with PullConsumer("127.0.0.1:2", group="h", broadcast=True, client=settings):
            pass


async def test_objects_without_a_name_each_have_an_instance() -> None:
    assert acquire_instance(NOBODY).instance is not acquire_instance(NOBODY).instance


async def test_a_lent_instance_is_left_open() -> None:
    async with ClientCore(NOBODY) as instance:
        async with AdminClient(instance=instance):
            pass
        assert instance.running
    with pytest.raises(ClientClosedError):
        await instance.start()


async def test_a_second_producer_of_a_group_is_refused_and_the_first_goes_on() -> None:
    async with Producer(NOBODY, group="g", client=NAMED):
        with pytest.raises(ClientError, match="has a Producer of g already"):
            await Producer(NOBODY, group="g", client=NAMED).start()
        held = acquire_instance(NOBODY, settings=NAMED).instance
        assert held.running
    assert held.closed


async def test_what_members_share_is_made_once() -> None:
    async with ClientCore(NOBODY) as instance:
        assert instance.shared(list, list) is instance.shared(list, list)


async def test_what_needs_the_same_id_after_a_restart_keeps_the_name_default_and_shares() -> None:
    settings = ClientSettings(client_ip="10.0.0.1")
    kept, other = (acquire_instance(NOBODY, settings=settings, keep_name=True) for _ in range(2))

    assert kept.instance.client_id == "10.0.0.1@DEFAULT"
    assert other.instance is kept.instance


async def test_the_first_object_decides_the_settings_of_an_instance() -> None:
    first = acquire_instance(NOBODY, settings=NAMED)
    later = ClientSettings(client_ip="10.0.0.1", instance_name="shop", call_timeout_ms=77)

    assert acquire_instance(NOBODY, settings=later).instance is first.instance
    assert first.instance.settings.call_timeout_ms == NAMED.call_timeout_ms


async def test_name_servers_come_from_argument_settings_or_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:3;127.0.0.1:4")
    named = ClientSettings(name_servers="127.0.0.1:2")

    def known(address: str, settings: ClientSettings | None) -> set[str]:
        return set(acquire_instance(address, settings=settings).instance.name_servers.addresses)

    assert known(NOBODY, named) == {NOBODY}
    assert known("", named) == {"127.0.0.1:2"}
    assert known("", None) == {"127.0.0.1:3", "127.0.0.1:4"}


def test_a_wrong_name_server_of_the_environment_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "nowhere")
    with pytest.raises(
        ConfigError,
        match=r"^setting name_servers, or variable NAMESRV_ADDR: .* 'nowhere': expected",
    ):
        Producer(group="g")


def test_without_a_name_server_and_an_endpoint_it_is_the_usual_port_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)

    assert acquire_instance("").instance.name_servers.addresses == ("127.0.0.1:9876",)


def test_an_endpoint_is_asked_before_the_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("COMETMQ_CLIENT_HTTP_DOMAIN", "127.0.0.1:1")

    assert acquire_instance("").instance.name_servers.addresses == ()


def drop(objects: list[object]) -> None:
    """Let the last references go, and collect what they held."""
    objects.clear()
    gc.collect()


def test_an_instance_whose_event_loop_is_gone_is_replaced() -> None:
    """Programs may call asyncio.run several times."""
    held = acquire_instance(NOBODY, settings=NAMED)
    asyncio.run(held.open())

    assert acquire_instance(NOBODY, settings=NAMED).instance is not held.instance

    leases: list[object] = [held]
    del held
    with pytest.warns(ResourceWarning, match="unclosed client 10.0.0.1@shop"):
        drop(leases)


async def test_a_running_instance_refuses_the_members_of_another_event_loop() -> None:
    held = acquire_instance(NOBODY, settings=NAMED)
    await held.open()
    other = acquire_instance(NOBODY, settings=NAMED)
    try:
        with pytest.raises(ClientError, match="runs in another event loop"):
            await asyncio.to_thread(asyncio.run, other.open())
        assert held.instance.running
    finally:
        await other.close()
        await held.close()


async def test_a_client_that_could_not_start_leaves_nothing_behind() -> None:
    """Nobody names a name server, and the endpoint does not answer."""
    settings = ClientSettings(client_ip="10.0.0.1", instance_name="x", http_domain="127.0.0.1:1")
    failing = Producer(group="g", client=settings)
    text = (
        r"^no name server is set: give name_servers='host:port', or set NAMESRV_ADDR "
        r"\(http://127\.0\.0\.1:1/rocketmq/nsaddr did not respond: .*\)$"
    )

    with pytest.raises(NameServerError, match=text):
        await failing.start()

    assert acquire_instance("", settings=settings).instance.holds == 0


class Note:
    """A hook of an application."""

    def before_request(self, address: str, call: OutgoingCall) -> None:
        call.fields["note"] = "x"

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Nothing is left to do."""


@pytest.mark.parametrize(
    ("account", "given"),
    [
        ({"access_key": "who", "secret_key": "hush"}, [Note()]),
        ({}, [Note(), Signer(Credentials("who", "hush"))]),
    ],
)
async def test_signing_comes_after_every_other_hook(
    account: dict[str, str], given: list[RpcHook]
) -> None:
    """Whatever another hook adds is signed, too, whether settings or a hook name the account."""
    settings = ClientSettings(namespace_v2="ns", stream=True, **account)
    hooks = ClientCore(NOBODY, settings=settings, hooks=given).remoting.hooks

    call = OutgoingCall(105, {"topic": "t"}, b"body")
    for hook in hooks:
        hook.before_request("a:1", call)

    signed = call.fields.pop("Signature")
    assert set(call.fields) == {"topic", "nsd", "ns", "ReqT", "note", "AccessKey"}
    values = "".join(call.fields[name] for name in sorted(call.fields))
    assert signed == SigningKey("hush").sign(values.encode() + b"body").decode()


async def test_the_first_endpoint_may_give_the_namespace() -> None:
    instance = ClientCore("http://MQ_INST_1_2.mq.example:8080")

    assert instance.namespace.name == "MQ_INST_1_2"
    assert instance.name_servers.addresses == ("MQ_INST_1_2.mq.example:8080",)


async def test_sends_go_to_the_second_port_when_that_is_switched_on() -> None:
    switched_on = ClientCore(NOBODY, settings=ClientSettings(vip_channel=True))

    assert switched_on.send_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert ClientCore(NOBODY).send_address("10.0.0.1:10911") == "10.0.0.1:10911"
    assert switched_on.send_address("no-address") == "no-address"  # connecting fails and says so


@pytest.mark.parametrize("own", ["10.1.2.3", "my-machine.example"])
async def test_message_ids_carry_the_address_of_the_client_or_where_it_has_a_name_the_machines(
    own: str,
) -> None:
    address = "10.1.2.3" if own == "10.1.2.3" else outward_address([NOBODY]).strip("[]")

    async with ClientCore(NOBODY, settings=ClientSettings(client_ip=own)) as instance:
        unique_id = instance.unique_ids().next()

    assert bytes.fromhex(unique_id).startswith(ip_address(address).packed)


async def test_an_object_that_is_cancelled_while_it_starts_leaves_the_instance_to_others() -> None:
    """At every await of its start."""
    for turns in range(20):
        first, second = (Producer(NOBODY, group=group, client=NAMED) for group in ("g", "h"))
        starting = asyncio.create_task(first.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await first.close()

        async with second:
            core = acquire_instance(NOBODY, settings=NAMED).instance
            assert core.running
            assert [member.group for member in core._members] == ["h"]
        assert core.closed


async def test_an_object_may_start_while_the_start_of_another_one_is_given_up() -> None:
    first, second = (Producer(NOBODY, group=group, client=NAMED) for group in ("g", "h"))
    starting = asyncio.create_task(first.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, second.start(), return_exceptions=True)
    await first.close()

    core = acquire_instance(NOBODY, settings=NAMED).instance
    assert core.running
    assert [member.group for member in core._members] == ["h"]
    await second.close()
    assert core.closed


@pytest.mark.parametrize("was_closed", [False, True])
async def test_a_lent_instance_has_to_run(was_closed: bool) -> None:
    async with ClientInstance(NOBODY) as instance:
        pass
    lent = instance if was_closed else ClientInstance(NOBODY)
    for made in (
        Producer(instance=lent, group="g"),
        PullConsumer(instance=lent, group="g", subscriptions={"t": "*"}),
        AdminClient(instance=lent),
    ):
        expected = "is closed: create a new one" if was_closed else "not running: start it first"
        with pytest.raises(ClientClosedError, match=expected):
            await made.start()


async def test_a_consumer_whose_instance_is_closed_cannot_go_on() -> None:
    async with ClientInstance(NOBODY) as instance:
        consumer = PullConsumer(instance=instance, group="g")
        other = PullConsumer(instance=instance, group="h")
        await consumer.start()
        await other.start()
        await other.close()
        assert consumer.healthy

    assert not consumer.healthy
    with pytest.raises(ClientClosedError, match="was closed before consumer g"):
        raise consumer.failure or LookupError
    assert other.failure is None
    await consumer.close()


NOWHERE = "127.0.0.1:1"
REFUSED = "runs in another event loop: call it there"

Call = Callable[[Any], Coroutine[Any, Any, object]]


def elsewhere(call: Call, client: object) -> None:
    asyncio.run(call(client))


@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.start(),
        lambda producer: producer.send(Message(topic="t", body=b"x")),
        lambda producer: producer.flush(),
        lambda producer: producer.close(),
    ],
    ids=["start", "send", "flush", "close"],
)
async def test_another_loop_is_refused(call: Call) -> None:
    async with Producer(NOWHERE, group="g") as producer:
        with pytest.raises(ClientError, match=REFUSED):
            await asyncio.to_thread(elsewhere, call, producer)
        assert producer.running


async def test_a_thread_without_a_loop_is_refused() -> None:
    async with Producer(NOWHERE, group="g") as producer:
        with pytest.raises(ClientError, match=REFUSED):
            await asyncio.to_thread(producer.send_nowait, Message(topic="t", body=b"x"))


async def test_the_subscriptions_of_a_consumer_are_changed_in_its_loop_only() -> None:
    async with PullConsumer(NOWHERE, group="g") as consumer:
        with pytest.raises(ClientError, match=REFUSED):
            await asyncio.to_thread(elsewhere, lambda each: each.unsubscribe("t"), consumer)


def test_what_a_closed_loop_has_left_can_be_closed() -> None:
    async def start() -> ClientCore:
        instance = ClientCore(NOWHERE)
        await instance.start()
        return instance

    async def close(instance: ClientCore) -> None:
        await instance.close()
        assert instance.closed

    asyncio.run(close(asyncio.run(start())))
