"""A file of accounts, and their settings."""

from __future__ import annotations

from pathlib import Path

from cometmq.access.account_settings import AccountSettings
from cometmq.access.signer import RequestSigner

ACCOUNTS = """
accounts:
- {accessKey: operations, secretKey: secret-of-operations, admin: true}
- {accessKey: order-service, secretKey: secret-of-orders, topicPerms: [Orders=PUB|SUB],
   groupPerms: [order-service=SUB]}
"""
SECRETS = {"operations": "secret-of-operations", "order-service": "secret-of-orders"}


def home_with_accounts(folder: Path) -> Path:
    """Write the accounts below a home directory, and return it."""
    path = folder / "home" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return folder / "home"


def credentials(access_key: str) -> str:
    """Return an account as ``innerClientAuthenticationCredentials`` has it."""
    return f'{{"accessKey":"{access_key}","secretKey":"{SECRETS[access_key]}"}}'


def signer(access_key: str) -> RequestSigner:
    """Return the hook that signs as an account."""
    return RequestSigner(credentials(access_key))


def guarded(folder: Path) -> AccountSettings:
    """Return the settings of a server with access control, which signs as operations."""
    return AccountSettings(
        acl_enable=True,
        rocketmq_home=home_with_accounts(folder),
        inner_client_credentials=credentials("operations"),
    )
