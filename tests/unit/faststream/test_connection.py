"""The account of a connection."""

from __future__ import annotations

import pytest
from faststream.security import SASLPlaintext, SASLScram256

from cometmq.faststream.connection import Connection, account_of
from cometmq.model.errors import ConfigError


def test_accounts() -> None:
    assert account_of(None) == {}
    assert account_of(SASLPlaintext("key", "secret", use_ssl=True)) == {
        "use_tls": True,
        "access_key": "key",
        "secret_key": "secret",
    }
    with pytest.raises(ConfigError, match="SASLScram256: expected BaseSecurity"):
        account_of(SASLScram256("key", "secret"))


async def test_settings_of_connections_and_of_the_producer() -> None:
    security = SASLPlaintext("key", "secret")
    given = Connection("127.0.0.1:1", security, {"namespace": "n"}, {"timeout_ms": 1_234}, True, 8)
    assert given.instance.settings.namespace == "n"
    assert given.instance.settings.access_key == "key"
    assert given.producer.settings.timeout_ms == 1_234
