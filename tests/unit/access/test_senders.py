"""The accounts of senders are looked up once, until accounts change."""

from __future__ import annotations

import pytest

from cometmq.access import senders
from cometmq.access.gate import Account
from cometmq.access.plain.account import AccountEntry, PlainAccount
from cometmq.access.senders import Senders
from cometmq.model.errors import ResponseError
from support.wire.fake_transport import Wired

FIRST, CHANGED = object(), object()
"""States of the accounts."""


class LookUps(list[tuple[str, str]]):
    """Finds an account for every sender but one, and lists the senders that were looked up."""

    def find(self, host: str, access_key: str) -> Account:
        self.append((host, access_key))
        if access_key == "Unknown":
            raise ResponseError(1, "no account")
        return PlainAccount(AccountEntry(access_key=access_key, secret_key="secret-of-it"))


async def test_a_sender_is_looked_up_once_in_each_state_of_the_accounts() -> None:
    found = LookUps()
    known = Senders(found.find)
    one, other = (Wired(peer=(host, 4000)).connection for host in ("10.0.0.1", "2001:db8::5"))

    first = known.account(one, "Account-1", FIRST)

    assert known.account(one, "Account-1", FIRST) is first
    assert known.account(other, "Account-1", FIRST) is not first
    assert known.account(one, "Account-1", CHANGED) is not first
    assert [host for host, _ in found] == ["10.0.0.1", "2001:db8::5", "10.0.0.1"]


async def test_a_refusal_is_not_remembered() -> None:
    found = LookUps()
    known = Senders(found.find)

    for _ in range(2):
        with pytest.raises(ResponseError, match="no account"):
            known.account(Wired().connection, "Unknown", FIRST)

    assert len(found) == 2


async def test_senders_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(senders, "SENDERS_MAX", 2)
    found = LookUps()
    known = Senders(found.find)
    connection = Wired().connection

    for number in (1, 2, 3, 3, 1):
        known.account(connection, f"Account-{number}", FIRST)

    assert [access_key for _, access_key in found] == [
        f"Account-{number}" for number in (1, 2, 3, 1)
    ]
