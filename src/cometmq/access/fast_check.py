# cython: annotation_typing=False
"""Checks the requests that a fast path reads in the receive buffer.

The content of a request is signed again, and compared. The accounts and their permissions are those
of the general path. What is not sure to be allowed is left to the general path, which refuses it
with the reason.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cometmq.access.gate import Accounts, Action, Needs, group_need, needs_of, topic_need
from cometmq.model.errors import ResponseError
from cometmq.protocol.signed_fields import SignedFields


class FastCheck:
    """Checks one request after the other.

    Args:
        accounts: the accounts.
        action: what the requests do with their topics.
    """

    def __init__(self, accounts: Accounts, action: Action) -> None:
        self._accounts = accounts
        self._action = action
        self.fields = SignedFields()
        """Gets the fields of each header."""
        self._state: object = None
        self._wire: Any = None
        self._key = b""
        self._account: Any = None
        """The sender with this key on this wire; None if it is unknown."""
        self._allowed: Any = None
        """The sender that may use `_topic` and `_group`."""
        self._topic: str | None = None
        self._group: str | None = None

    def allows(
        self,
        wire: Any,
        data: bytearray,
        unescaped: bytearray,
        body_at: int,
        body_end: int,
        topic: str,
        group: str | None,
    ) -> bool:
        """Return whether the request is sure to be allowed.

        Args:
            wire: its connection.
            data: contains the header and the body.
            unescaped: contains values whose escapes were resolved.
            body_at, body_end: where the body is.
            topic: the topic that it uses.
            group: the group that it consumes as; None for none.
        """
        fields = self.fields
        if not fields.is_usable:
            return False
        key = fields.access_key(data)
        if wire is not self._wire or key != self._key or self._state is not self._accounts.state:
            self._find(wire, key)
        account = self._account
        if account is None:
            return False
        signing_key = account.signing_key
        if signing_key is not None:
            content = fields.content(data, unescaped, body_at, body_end)
            if not signing_key.accepts(content, fields.signature(data)):
                return False
        if account is self._allowed and topic is self._topic and group is self._group:
            return True
        return self._may(account, topic, group)

    def release(self) -> None:
        """Drop the reference to the connection that was read last."""
        self._wire = None

    def _find(self, wire: Any, key: bytes) -> None:
        """Find the sender."""
        accounts = self._accounts
        self._wire, self._key, self._state = wire, key, accounts.state
        self._allowed = self._account = None
        with suppress(ResponseError):
            self._account = accounts.sender_of(wire, key.decode("ascii"))

    def _may(self, account: Any, topic: str, group: str | None) -> bool:
        resources = [topic_need(topic, self._action)]
        if group is not None:
            resources.append(group_need(group))
        needs: Needs = needs_of(resources)
        if account.refusal(0, needs) is not None:
            return False
        self._allowed, self._topic, self._group = account, topic, group
        return True
