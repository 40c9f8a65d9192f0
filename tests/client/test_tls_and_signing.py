"""TLS, signed requests, and proxies, one by one and together."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import kombu
import pytest
from servers import Cluster, Settings

import cometmq.kombu  # noqa: F401 - makes the scheme known
from cometmq.client import (
    AdminClient,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from cometmq.client._connection.instance import ClientCore
from cometmq.client._lifecycle import Lifecycle
from cometmq.client.errors import NameServerError
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.signature import SigningKey
from cometmq.remoting import RemotingServer, Request, Response, TlsSettings
from cometmq.remoting.tls import client_context
from support.brokers.certificates import Authority
from support.brokers.clusters import COMET
from support.brokers.scripted import route
from support.checks.waiting import until
from support.runner.versions import VERSIONS_5

HOST = "127.0.0.1"
ACCOUNT = ClientSettings(access_key="cometmq-user", secret_key="very-secret-1")
READER = ClientSettings(access_key="cometmq-reader", secret_key="less-secret-1")
ACCOUNTS = """accounts:
- accessKey: cometmq-user
  secretKey: very-secret-1
  admin: true
- accessKey: cometmq-reader
  secretKey: less-secret-1
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - guarded=SUB
"""
AUTH = "org.apache.rocketmq.auth"
_IN_5: Settings = {
    "authenticationEnabled": True,
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationEnabled": True,
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "migrateAuthFromV1Enabled": True,
}
ACCESS_CONTROL: dict[str, Settings] = {
    COMET: {"aclEnable": True},
    "4.9.7": {"aclEnable": True},
    **dict.fromkeys(VERSIONS_5, _IN_5),
}
"""What makes a broker check whose requests are whose; 5.3 takes over the accounts of the file."""
REFUSED = [
    (ClientSettings(), "No accessKey is configured", "username cannot be null"),
    (
        ClientSettings(access_key="cometmq-user", secret_key="guessed-wrong"),
        "Check signature failed for accessKey=cometmq-user",
        "check signature failed",
    ),
    (
        ClientSettings(access_key="somebody-else", secret_key="very-secret-1"),
        "No acl config for somebody-else",
        "User:somebody-else is not found",
    ),
    (
        READER,
        "No default permission for .*guarded",
        "User:cometmq-reader has no permission to access Topic:guarded",
    ),
]
"""Who may not send, and what 4.9 and 5.3 say about it."""


class NameServer:
    """A name server that knows one topic and notes every request."""

    def __init__(self, tls: TlsSettings | None = None) -> None:
        self.requests: list[Request] = []
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        self.server = RemotingServer({code: self._route}, tls=tls, name="noting")

    def _route(self, request: Request) -> Response:
        self.requests.append(request)
        return Response(body=route({"a": "127.0.0.1:1"}).encode())

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server.port}"


@asynccontextmanager
async def running(tls: TlsSettings | None = None) -> AsyncIterator[NameServer]:
    """A name server of this kind."""
    server = NameServer(tls)
    await server.server.start(HOST, 0)
    try:
        yield server
    finally:
        await server.server.stop(0.0)


async def test_everything_works_over_tls(name_servers: str, topic: str, group: str) -> None:
    """The servers have made a certificate for themselves, and none is asked for."""
    settings = ClientSettings(use_tls=True)
    async with Producer(name_servers, group=group, client=settings) as producer:
        receipt = await producer.send(Message(topic=topic, body=b"sealed"))

    assert receipt.queue.topic == topic


async def test_a_server_with_a_trusted_certificate_is_talked_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue("server")
    tls = TlsSettings(mode="enforcing", certificate=str(certificate), key=str(key))
    settings = ClientSettings(use_tls=True, tls_trusted=str(authority.file))
    async with running(tls) as server, ClientCore(server.address, settings=settings) as client:
        assert await client.routes.find("t")


@pytest.mark.parametrize("check", [{"tls_check_server": True}, {"tls_trusted": "theirs"}])
async def test_a_server_with_another_certificate_is_refused(
    tmp_path: Path, check: dict[str, object]
) -> None:
    certificate, key = Authority(tmp_path, "ours").issue("server")
    tls = TlsSettings(mode="enforcing", certificate=str(certificate), key=str(key))
    if "tls_trusted" in check:
        check = {"tls_trusted": str(Authority(tmp_path, "theirs").file)}
    settings = ClientSettings(use_tls=True, **check)
    async with running(tls) as server, ClientCore(server.address, settings=settings) as client:
        with pytest.raises(NameServerError, match="certificate verify failed"):
            await client.routes.find("t")
    assert server.requests == []


async def test_a_certificate_without_extensions_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """As Python 3.13 and newer do by default."""
    authority = Authority(tmp_path, "ours", complete=False)
    certificate, key = authority.issue("server")
    tls = TlsSettings(mode="enforcing", certificate=str(certificate), key=str(key))
    strict = client_context(trusted=str(authority.file))
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    async with running(tls) as server, ClientCore(server.address, tls=strict) as client:
        with pytest.raises(NameServerError, match=r"RFC 5280 .* issue them again, see docs/howto"):
            await client.routes.find("t")


async def test_a_server_that_wants_to_know_its_clients_is_shown_a_certificate(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue("server")
    tls = TlsSettings(
        mode="enforcing",
        certificate=str(certificate),
        key=str(key),
        trusted=str(authority.file),
        client_certificate="require",
    )
    own, own_key = authority.issue("client", password="open sesame")
    known = ClientSettings(
        use_tls=True,
        tls_certificate=str(own),
        tls_key=str(own_key),
        tls_key_password="open sesame",
    )
    unknown = ClientSettings(use_tls=True, call_timeout_ms=2_000)
    async with running(tls) as server:
        async with ClientCore(server.address, settings=known) as client:
            assert await client.routes.find("t")
        async with ClientCore(server.address, settings=unknown) as client:
            with pytest.raises(NameServerError, match="may require a certificate that it trusts"):
                await client.routes.find("t")


async def test_a_server_says_why_it_refuses_the_certificate_of_a_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.issue("server")
    tls = TlsSettings(
        mode="enforcing",
        certificate=str(certificate),
        key=str(key),
        trusted=str(authority.file),
        client_certificate="require",
    )
    other, other_key = Authority(tmp_path, "theirs").issue("client")
    settings = ClientSettings(use_tls=True, tls_certificate=str(other), tls_key=str(other_key))
    async with running(tls) as server, ClientCore(server.address, settings=settings) as client:
        with pytest.raises(NameServerError, match="may require a certificate that it trusts"):
            await client.routes.find("t")

    assert "no trusted authority has signed it" in caplog.text


async def test_files_that_cannot_be_used_are_told_of_when_the_client_is_made() -> None:
    settings = ClientSettings(use_tls=True, tls_trusted="/nowhere/ca.pem")
    with pytest.raises(ConfigError, match=r"tls_trusted=/nowhere/ca\.pem: cannot be read"):
        ClientCore("127.0.0.1:1", settings=settings)


async def test_requests_are_signed_over_the_fields_that_travel_and_the_body() -> None:
    settings = ClientSettings(
        access_key="who", secret_key="hush", security_token="tok", namespace_v2="ns", stream=True
    )
    async with running() as server, ClientCore(server.address, settings=settings) as client:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        header = GetRouteinfoByTopicRequest(topic="t")
        await client.name_servers.call(code, header, b"body", timeout=3.0)
        await client.remoting.oneway(server.address, code, header, b"body")
        await until(lambda: len(server.requests) >= 2, timeout=60)

    for request in server.requests:
        fields = dict(request.command.fields)
        signed = fields.pop("Signature")
        content = "".join(fields[name] for name in sorted(fields)).encode() + b"body"
        assert signed == SigningKey("hush").sign(content).decode()
        assert fields["AccessKey"] == "who"
        assert fields["SecurityToken"] == "tok"
        assert (fields["nsd"], fields["ns"], fields["ReqT"]) == ("true", "ns", "0")
        assert "hush" not in str(fields)


async def test_a_request_without_an_account_carries_no_signature() -> None:
    async with running() as server:
        async with ClientCore(server.address) as client:
            await client.routes.find("t")
        (request,) = server.requests

    assert not {"AccessKey", "Signature", "ns", "ReqT"} & request.command.fields.keys()


@contextmanager
def guarded(target: str, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose broker serves two accounts only, one of them for reading."""
    home = tmp_path / "guarded" / "broker"
    settings = ACCESS_CONTROL[target] | ({"rocketmqHome": str(home)} if target == COMET else {})
    made = Cluster(target, tmp_path / "guarded", settings=settings)
    conf = home / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    try:
        made.start()
        yield made
    finally:
        made.kill()


def starting_clients(namesrv: str, account: ClientSettings) -> list[Lifecycle]:
    """One client of each class, which reads or sends the topic ``guarded``."""

    def handler(message: object) -> None:
        raise AssertionError

    consumers: list[Lifecycle] = [
        PushConsumer(namesrv, group="g", client=account, topic="guarded", handler=handler),
        PopConsumer(namesrv, group="g", client=account, topic="guarded", handler=handler),
        PullConsumer(namesrv, group="g", client=account, topic="guarded"),
        SimpleConsumer(namesrv, group="g", client=account, topic="guarded"),
    ]
    return [*consumers, Producer(namesrv, client=account, topics=("guarded",))]


@pytest.mark.only_on(*ACCESS_CONTROL)
async def test_brokers_serve_accounts_what_they_may_and_say_why_they_refuse(
    target: str, tmp_path: Path
) -> None:
    """One cluster for all of it, since starting one takes long."""
    old = target in (COMET, "4.9.7")
    with guarded(target, tmp_path) as cluster:
        async with AdminClient(cluster.namesrv, client=ACCOUNT) as admin:
            (queue,) = await admin.create_topic("guarded", queues=1)
        async with Producer(cluster.namesrv, group="g", client=ACCOUNT) as producer:
            assert await producer.send(Message(topic="guarded", body=b"mine"))

        for account in (ACCOUNT, READER):
            async with PullConsumer(
                cluster.namesrv, group=f"of-{account.access_key}", client=account
            ) as consumer:
                found = await consumer.pull(queue, 0)
                assert [message.body for message in found.messages] == [b"mine"]

        code = ResponseCode.SYSTEM_ERROR if old else ResponseCode.NO_PERMISSION
        for account, *said in REFUSED:
            why = said[0] if old else said[1]
            async with Producer(cluster.namesrv, group="g", client=account) as producer:
                with pytest.raises(ResponseError, match=why) as refused:
                    await producer.send(Message(topic="guarded", body=b"theirs"))
            assert refused.value.code == code
            assert "secret" not in str(refused.value)
            if account is READER:
                continue
            for starting in starting_clients(cluster.namesrv, account):
                with pytest.raises(ResponseError, match=why):
                    await starting.start()
            async with PullConsumer(cluster.namesrv, group="g", client=account) as consumer:
                with pytest.raises(ResponseError, match=why):
                    await consumer.pull(queue, 0)

        async with AdminClient(cluster.namesrv, client=READER) as admin:
            with pytest.raises(ResponseError):
                await admin.create_topic("somebody-elses", queues=1)


@pytest.mark.only_on(COMET)
def test_kombu_uses_the_account_of_its_url_and_tls(target: str, tmp_path: Path) -> None:
    with guarded(target, tmp_path) as cluster:
        for secret in ("very-secret-1", "guessed-wrong"):
            url = f"cometmq://cometmq-user:{secret}@{cluster.namesrv}"
            options = {"client": {"use_tls": True}}
            with kombu.Connection(url, transport_options=options) as connection:
                queue = kombu.Queue("sealed")
                if secret != "very-secret-1":
                    with pytest.raises(connection.channel_errors):
                        queue(connection.channel()).declare()
                    continue
                connection.Producer().publish("x", routing_key="sealed", declare=[queue])
                message = queue(connection.channel()).get()
                assert message.payload == "x"
                message.ack()
