"""Sessions over TLS, and on behalf of accounts, with options that hold no secret."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import Cluster, Settings

from cometmq.client import Message
from cometmq.client.blocking import AdminClient, Producer
from cometmq.client.settings import ClientSettings
from cometmq.protocol.record import decode_messages
from cometmq.spark.brokers import Bounds, BrokerSession, connect, disconnect_all
from cometmq.spark.errors import SourceError, UnreachableError
from cometmq.spark.offsets import QueueKey, QueueRange
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.parsing import parse_options

pytestmark = pytest.mark.long_elsewhere

TOPIC = "guarded"
ADMIN = ClientSettings(access_key="cometmq-user", secret_key="very-secret-1")
ACCOUNTS = f"""accounts:
- accessKey: cometmq-user
  secretKey: very-secret-1
  admin: true
- accessKey: cometmq-reader
  secretKey: less-secret-1
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - {TOPIC}=SUB
"""
AUTH = "org.apache.rocketmq.auth"
LOCAL = f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
LOCAL_RIGHTS = f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
ACCESS_CONTROL: dict[str, Settings] = {
    "4.9.7": {"aclEnable": True},
    "5.3.3": {
        "authenticationEnabled": True,
        "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": LOCAL,
        "authorizationEnabled": True,
        "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": LOCAL_RIGHTS,
        "migrateAuthFromV1Enabled": True,
    },
}


def session(name_servers: str, **given: str) -> BrokerSession:
    quick = {"fetchoffset.numretries": "1", "fetchoffset.retryintervalms": "1"}
    options = {"nameserver": name_servers, **quick, **given}
    return connect(parse_options(ConnectionOptions, options))


def account(name: str, variable: str) -> dict[str, str]:
    return {
        "rocketmq.acl.accesskey": f"cometmq-{name}",
        "rocketmq.acl.secretkey": f"env:{variable}",
    }


def bodies(of: BrokerSession, each: QueueRange) -> list[bytes]:
    return [message.body for piece in of.read(each) for message in decode_messages(piece)]


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    disconnect_all()


def test_everything_works_over_tls(name_servers: str, topic: str) -> None:
    """The servers have made a certificate for themselves, and none is asked for."""
    sealed = session(name_servers, **{"rocketmq.tls.enable": "true"})
    with Producer(name_servers, group="g") as producer:
        receipt = producer.send(Message(topic, b"sealed"))
    key = QueueKey(topic, receipt.queue.broker_name, receipt.queue.queue_id)
    assert key in sealed.queues([topic])
    assert sealed.bounds([key]) == {key: Bounds(0, 1)}
    assert bodies(sealed, QueueRange(key, 0, 1)) == [b"sealed"]


def test_a_server_that_nobody_vouches_for_is_not_talked_to(
    name_servers: str, topic: str, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=elsewhere -keyout /dev/null"
    subprocess.run([*make.split(), "-out", authority], check=True, capture_output=True, timeout=30)
    given = {"rocketmq.tls.enable": "true", "rocketmq.tls.trustcertpath": str(authority)}
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        session(name_servers, **given).queues([topic])


@contextmanager
def guarded(target: str, folder: Path) -> Iterator[Cluster]:
    """A real cluster whose broker serves two accounts only, one of them for reading one topic."""
    made = Cluster(target, folder, settings=ACCESS_CONTROL[target])
    conf = folder / "broker" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.mark.only_on("4.9.7", "5.3.3")
def test_a_broker_serves_accounts_whose_secrets_are_looked_up(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cluster for all of it, since starting one takes long."""
    monkeypatch.setenv("THE_ADMINS", "very-secret-1")
    monkeypatch.setenv("THE_READERS", "less-secret-1")
    with guarded(target, tmp_path / "guarded") as cluster:
        names = cluster.namesrv
        with AdminClient(names, client=ADMIN) as admin:
            (queue,) = admin.create_topic(TOPIC, queues=1)
        with Producer(names, group="g", client=ADMIN) as producer:
            producer.send(Message(TOPIC, b"mine"))
        key = QueueKey(TOPIC, queue.broker_name, 0)

        admin_of, reader_of = (
            session(names, **account("user", "THE_ADMINS")),
            session(names, **account("reader", "THE_READERS")),
        )
        for of in (admin_of, reader_of):
            assert bodies(of, QueueRange(key, 0, 1)) == [b"mine"]
        for of in (admin_of, reader_of) if target == "4.9.7" else (admin_of,):
            assert of.bounds([key]) == {key: Bounds(0, 1)}
            assert of.at_time({key: 0}) == {key: 0}
            assert of.committed("of-nobody", [key]) in ({}, {key: 0})
        if target == "5.3.3":  # which tells bounds to those only who have the right GET
            with pytest.raises(SourceError, match=f"cometmq-reader has no permission.*{TOPIC}"):
                reader_of.bounds([key])

        for given in ({}, account("user", "PATH")):
            with pytest.raises(SourceError, match=TOPIC) as met:
                bodies(session(names, **given), QueueRange(key, 0, 1))
            assert not isinstance(met.value, UnreachableError)
            assert "secret" not in str(met.value)
