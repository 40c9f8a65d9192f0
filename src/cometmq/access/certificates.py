"""Accounts that verified certificates of clients name, so that requests need no signature.

The name is the common name of the certificate, or one of its alternative names (DNS, URI, e-mail).
It must be the access key of exactly one account. A request that names an account itself is checked
by its signature, whatever the certificate says.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.access.gate import NAMES_SHOWN_MAX, Account, Accounts
from cometmq.access.needs import Need, Needs
from cometmq.model.errors import ResponseError
from cometmq.protocol.signature import SigningKey
from cometmq.remoting.config import NO_ACCOUNT, TlsSettings
from cometmq.remoting.wire import Wire

log = logging.getLogger(__name__)

NAMES_MAX: Final = 16
"""The names of a certificate that are looked up."""
_KINDS: Final = {"cn": ("CN",), "san": ("DNS", "URI", "email")}


class CertifiedAccount:
    """An account whose sender a certificate has proved.

    Args:
        account: the account, with all its permissions.
    """

    __slots__ = ("_account",)

    signing_key: SigningKey | None = None

    def __init__(self, account: Account) -> None:
        self._account = account

    @property
    def name(self) -> str:
        """The name of the account."""
        return self._account.name

    @property
    def may_do_everything(self) -> bool:
        """Whether the account may do everything."""
        return self._account.may_do_everything

    @property
    def is_administrator(self) -> bool:
        """Whether the account is an administrator."""
        return self._account.is_administrator

    def refusal(self, code: int, needs: Needs) -> str | None:
        """Return why the account may not make a request; None if it may."""
        return self._account.refusal(code, needs)

    def creation_refusal(self, need: Need, needs_right: bool) -> str | None:
        """Return why the account may not create a topic or a group by using it; None if it may."""
        return self._account.creation_refusal(need, needs_right)


class CertificateAccounts:
    """Finds accounts by the certificates of connections, and the others by access keys.

    Args:
        accounts: all accounts.
        names: which names of a certificate count: ``cn`` or ``san``.
    """

    def __init__(self, accounts: Accounts, names: str) -> None:
        self._accounts = accounts
        self._kinds = _KINDS[names]

    @property
    def state(self) -> object:
        """An object that is another one after each change."""
        return self._accounts.state

    def sender_of(self, connection: Wire, access_key: str) -> Account:
        """Return the account that a request names, else that of the certificate.

        Raises:
            ResponseError: there is no such account.
        """
        if access_key or not connection.certificate_names:
            return self._accounts.sender_of(connection, access_key)
        names = [name for kind, name in connection.certificate_names if kind in self._kinds]
        found = [account for name in names[:NAMES_MAX] if (account := self._find(connection, name))]
        if len(found) == 1:
            return CertifiedAccount(found[0])
        try:
            return self._accounts.sender_of(connection, "")
        except ResponseError as refusal:
            shown = ", ".join(names[:NAMES_MAX])[:NAMES_SHOWN_MAX] or "nothing"
            raise ResponseError(
                refusal.code,
                f"{refusal.remark}, and the certificate names {len(found)} accounts, expected one:"
                f" it has {' and '.join(self._kinds)} {shown}",
            ) from None

    def named(self, connection: Wire, access_key: str) -> Account:
        """Return the account that a request names, whatever its connection proves.

        Raises:
            ResponseError: there is no such account.
        """
        return self._accounts.named(connection, access_key)

    def _find(self, connection: Wire, name: str) -> Account | None:
        try:
            return self._accounts.sender_of(connection, name) if name else None
        except ResponseError:
            return None


def with_certificates(accounts: Accounts, tls: TlsSettings) -> Accounts:
    """Return the accounts, found by certificates too if the settings of TLS say so."""
    if tls.client_account == NO_ACCOUNT:
        return accounts
    return CertificateAccounts(accounts, tls.client_account)
