"""The account of a connection."""

from __future__ import annotations

import pytest
from faststream.security import SASLPlaintext, SASLScram256

from cometmq.faststream.connection import account_of
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
