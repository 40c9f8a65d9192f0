"""Remembers the accounts of senders, until accounts change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.access.gate import Account
from cometmq.remoting.wire import Wire

SENDERS_MAX: Final = 10_000
"""Senders that are remembered, each an address with an access key."""


class Senders:
    """The accounts of senders, as they are in one state of the accounts.

    Args:
        find: returns the account of a sender at an address, with an access key.
    """

    def __init__(self, find: Callable[[str, str], Account]) -> None:
        self._find = find
        self._state: object = None
        self._accounts: dict[tuple[str, str], Account] = {}

    def account(self, connection: Wire, access_key: str, state: object) -> Account:
        """Return the account of a sender.

        Args:
            connection: its connection.
            access_key: the access key of its request; empty for none.
            state: an object that is another one after each change of the accounts.

        Raises:
            ResponseError: there is no such account.
        """
        if self._state is not state:
            self._state = state
            self._accounts.clear()
        sender = connection.peer_text.rpartition(":")[0].strip("[]"), access_key
        found = self._accounts.get(sender)
        if found is None:
            found = self._find(*sender)
            if len(self._accounts) >= SENDERS_MAX:
                self._accounts.clear()
            self._accounts[sender] = found
        return found
