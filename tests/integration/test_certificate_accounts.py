"""Accounts that certificates of clients name: which requests need no signature."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from cometmq.client import AdminClient, Message, Producer, PullConsumer
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.bodies.auth import UserInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import ConnectError, ConnectionLostError, RemotingClient, TlsSettings
from cometmq.remoting.hooks import RpcHook
from cometmq.remoting.tls import client_context
from support.brokers.accounts import credentials, guarded, signer
from support.brokers.certificates import Authority
from support.brokers.pairs import Pairs, running_pairs

TIMEOUT_S = 30.0
READ, CHANGE = RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.PUT_KV_CONFIG
PUT = {"namespace": "N", "key": "k", "value": "v"}
NO_SIGNATURE = "No accessKey is configured"


class Site:
    """Authorities, and a name server whose accounts certificates may name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.stranger = Authority(folder, "ours"), Authority(folder, "another")
        self.server = self.authority.issue("server")

    def tls(self, account: str, asks: str = "optional") -> TlsSettings:
        certificate, key = map(str, self.server)
        return TlsSettings(
            certificate=certificate,
            key=key,
            trusted=str(self.authority.file),
            client_certificate=asks,
            client_account=account,
        )

    @asynccontextmanager
    async def running(self, account: str, asks: str = "optional") -> AsyncIterator[Pairs]:
        """Run the name server; ``account`` and ``asks`` are values of its settings."""
        tls = self.tls(account, asks)
        async with running_pairs(self.folder, accounts=guarded(self.folder), tls=tls) as pairs:
            yield pairs

    def context(self, files: tuple[Path, Path] | None) -> ssl.SSLContext:
        """Return how a client connects: with a certificate, or without."""
        certificate, key = map(str, files) if files else ("", "")
        return client_context(trusted=str(self.authority.file), certificate=certificate, key=key)

    async def call(
        self,
        pairs: Pairs,
        code: int,
        files: tuple[Path, Path] | None,
        *,
        hooks: Sequence[RpcHook] = (),
    ) -> Command:
        """Send a request to the name server over a connection of its own."""
        client = RemotingClient(name="test", tls=self.context(files), hooks=hooks)
        try:
            address = pairs.name_server.address
            return await client.call(address, code, fields=PUT, timeout=TIMEOUT_S)
        finally:
            await client.close()

    def of_broker(self) -> dict[str, str]:
        """Return the settings of a broker that wants certificates, and shows one."""
        certificate, key = map(str, self.authority.issue("operations"))
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(self.server[0]),
            "tls.server.keyPath": str(self.server[1]),
            "tls.server.trustCertPath": str(self.authority.file),
            "tls.server.need.client.auth": "require",
            "tls.server.client.account": "cn",
            "tls.client.trustCertPath": str(self.authority.file),
            "tls.client.certPath": certificate,
            "tls.client.keyPath": key,
            "brokerIP1": "127.0.0.1",
        }

    def client(self, name: str) -> ClientSettings:
        """Return the settings of a client that shows a certificate."""
        certificate, key = map(str, self.authority.issue(name))
        return ClientSettings(
            use_tls=True,
            tls_trusted=str(self.authority.file),
            tls_certificate=certificate,
            tls_key=key,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_certificate_stands_for_the_signature_of_its_account(site: Site) -> None:
    service, operations = site.authority.issue("order-service"), site.authority.issue("operations")
    async with site.running("cn") as pairs:
        assert (await site.call(pairs, READ, service)).code == ResponseCode.SUCCESS
        refused = await site.call(pairs, CHANGE, service)
        assert (refused.remark or "").startswith("Need admin permission")
        assert (await site.call(pairs, CHANGE, operations)).code == ResponseCode.SUCCESS


async def test_a_certificate_that_names_no_account_needs_a_signature(site: Site) -> None:
    files = site.authority.issue("unknown")
    async with site.running("cn") as pairs:
        refused = await site.call(pairs, READ, files)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == (
            f"{NO_SIGNATURE}, and the certificate names 0 accounts, expected one: it has CN unknown"
        )
        signed = await site.call(pairs, READ, files, hooks=[signer("order-service")])
        assert signed.code == ResponseCode.SUCCESS


async def test_without_a_certificate_a_signature_is_needed(site: Site) -> None:
    async with site.running("cn") as pairs:
        assert (await site.call(pairs, READ, None)).remark == NO_SIGNATURE
        signed = await site.call(pairs, READ, None, hooks=[signer("order-service")])
        assert signed.code == ResponseCode.SUCCESS
        plain = RemotingClient(name="plain")
        response = await plain.call(pairs.name_server.address, READ, timeout=TIMEOUT_S)
        assert response.remark == NO_SIGNATURE
        await plain.close()


@pytest.mark.parametrize("asks", ["optional", "require"])
async def test_a_certificate_of_another_authority_is_refused(site: Site, asks: str) -> None:
    files = site.stranger.issue("operations")
    async with site.running("cn", asks) as pairs:
        with pytest.raises((ConnectError, ConnectionLostError)):
            await site.call(pairs, READ, files)


async def test_without_the_setting_a_certificate_names_no_account(site: Site) -> None:
    files = site.authority.issue("operations")
    async with site.running("none") as pairs:
        assert (await site.call(pairs, READ, files)).remark == NO_SIGNATURE


async def test_a_request_that_names_an_account_is_checked_by_its_signature(site: Site) -> None:
    files = site.authority.issue("operations")
    async with site.running("cn") as pairs:
        refused = await site.call(pairs, CHANGE, files, hooks=[signer("order-service")])
        assert (refused.remark or "").startswith("Need admin permission")

        class Forged:
            def before_request(self, address: str, call: object) -> None:
                call.fields["AccessKey"] = "operations"  # type: ignore[attr-defined]

            def after_response(self, address: str, call: object, response: object) -> None:
                pass

        service = site.authority.issue("order-service")
        forged = await site.call(pairs, CHANGE, service, hooks=[Forged()])
        assert forged.remark == "Check signature failed for accessKey=operations"


async def test_an_alternative_name_is_the_account_if_it_is_the_only_one(site: Site) -> None:
    dns = site.authority.issue("a", names=[x509.DNSName("operations")])
    uri = site.authority.issue("b", names=[x509.UniformResourceIdentifier("order-service")])
    both = site.authority.issue("c", names=[*map(x509.DNSName, ("operations", "order-service"))])
    common = site.authority.issue("operations")
    async with site.running("san") as pairs:
        assert (await site.call(pairs, CHANGE, dns)).code == ResponseCode.SUCCESS
        assert (await site.call(pairs, READ, uri)).code == ResponseCode.SUCCESS
        assert "names 2 accounts" in ((await site.call(pairs, READ, both)).remark or "")
        assert "names 0 accounts" in ((await site.call(pairs, READ, common)).remark or "")


async def test_a_broker_and_its_clients_show_certificates_and_sign_nothing(site: Site) -> None:
    own = {"aclEnable": "true", "rocketmqHome": str(guarded(site.folder).rocketmq_home)}
    async with site.running("cn", "require") as pairs:
        await pairs.start("a", **site.of_broker(), **own)
        address, service = pairs.name_server.address, site.client("order-service")
        async with AdminClient(address, client=site.client("operations")) as admin:
            (orders,) = await admin.create_topic("Orders", queues=1)
            await admin.create_topic("Bills", queues=1)
        async with Producer(address, group="p", client=service) as producer:
            for number in range(3):
                await producer.send(Message("Orders", b"%d" % number))
            with pytest.raises(ResponseError, match="No default permission for topic:Bills"):
                await producer.send(Message("Bills", b"x"))
        async with PullConsumer(address, group="order-service", client=service) as consumer:
            found = await consumer.pull(orders, 0)
            assert [message.body for message in found.messages] == [b"0", b"1", b"2"]


async def test_a_certificate_of_a_super_user_is_as_good_as_its_signature(site: Site) -> None:
    users = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"operations","password":"a-long-password"}',
    }
    async with site.running("cn", "require") as pairs:
        broker = await pairs.start("a", **site.of_broker(), **users)
        address = pairs.name_server.address
        async with AdminClient(address, client=site.client("operations")) as admin:
            another = UserInfo(username="another", password="its-password", user_type="Super")
            await admin.create_user(broker.address, another)
            found = await admin.users(broker.address)
            assert {(user.username, user.password) for user in found} == {
                ("operations", "a-long-password"),
                ("another", "its-password"),
            }


@pytest.mark.parametrize(
    "settings",
    [
        {"client_certificate": "optional"},
        {"client_certificate": "none", "trusted": "ca.pem"},
        {"client_certificate": "require", "trusted": "ca.pem", "mode": "disabled"},
    ],
)
def test_names_of_certificates_that_are_not_verified_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.client\.account=cn needs"):
        TlsSettings(client_account="cn", **settings)  # type: ignore[arg-type]


async def test_without_access_control_the_setting_is_warned_of(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with running_pairs(site.folder, tls=site.tls("cn")) as pairs:
            settings = {
                "tls.server.trustCertPath": str(site.authority.file),
                "tls.server.need.client.auth": "optional",
                "tls.server.client.account": "cn",
            }
            await pairs.start("a", **settings)
    warnings = [r.getMessage() for r in caplog.records if "has no effect" in r.getMessage()]
    assert len(warnings) == 2, warnings
    assert credentials("operations") not in caplog.text
