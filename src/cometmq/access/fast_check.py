# cython: annotation_typing=False
"""Checks the requests that a fast path reads in the receive buffer.

The content of a request is signed again, and compared. The accounts and their permissions are those
of the general path. What is not sure to be allowed is left to the general path, which refuses it
with the reason.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cometmq.access.gate import Account, Accounts
from cometmq.access.needs import Action, group_need, needs_of, topic_need
from cometmq.access.senders import SENDERS_MAX
from cometmq.model.errors import ResponseError
from cometmq.protocol.signed_fields import RequestCheck, SignedFields

if TYPE_CHECKING:
    from cometmq.protocol.signature import SigningKey
    from cometmq.remoting.wire import Wire

USES_MAX = 100_000
"""Limit of the topics, and of the groups with topics, that are remembered for all accounts
together."""
_SENDERS_MAX, _USES_MAX = SENDERS_MAX, USES_MAX


class FastSender:
    """A sender as a fast path knows it.

    Args:
        account: its account.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.signing_key: SigningKey | None = account.signing_key
        self.allowed: set[Any] = set()
        """The topics that it may use, or groups with topics."""


class FastCheck(RequestCheck):
    """Checks one request after the other.

    Args:
        accounts: the accounts.
        action: what the requests do with their topics.
    """

    def __init__(self, accounts: Accounts, action: Action) -> None:
        super().__init__()
        self._accounts = accounts
        self._action = action
        self._state: object = None
        self._senders: dict[tuple[str, Any, bytes], FastSender] = {}
        self.uses = 0
        """How much of what senders may use is remembered."""
        self._wire: Wire | None = None
        self._sender: FastSender | None = None
        """The sender with this key on this wire; None if it is unknown."""

    def allows(
        self,
        wire: Wire,
        fields: SignedFields,
        data: bytearray,
        unescaped: bytearray,
        body_at: int,
        body_end: int,
        topic: str,
        group: str | None,
    ) -> bool:
        """Return whether the request is sure to be allowed; see `RequestCheck`."""
        if not fields.is_usable:
            return False
        if wire is not self._wire or not fields.has_access_key(data, self.key):
            self._find(wire, fields.access_key(data))
        sender = self._sender
        if sender is None:
            return False
        signing_key = sender.signing_key
        if signing_key is not None:
            content = fields.content(data, unescaped, body_at, body_end)
            if not signing_key.accepts(content, fields.signature(data)):
                return False
        if group is None:
            return topic in sender.allowed or self._may(sender, topic, topic, group)
        use = (group, topic)
        return use in sender.allowed or self._may(sender, use, topic, group)

    def release(self) -> None:
        """Forget the connection that was read last."""
        self._wire = None

    def _find(self, wire: Wire, key: bytes) -> None:
        """Find the sender."""
        state = self._accounts.state
        if state is not self._state:
            self._state = state
            self._forget()
        self._wire, self.key = wire, key
        # An address and a port may be used again, by a client with another certificate.
        sender_key = wire.peer_text, wire.certificate_names, key
        self._sender = self._senders.get(sender_key)
        if self._sender is None:
            with suppress(ResponseError):
                account = self._accounts.sender_of(wire, key.decode("ascii"))
                self._sender = FastSender(account)
                if len(self._senders) >= _SENDERS_MAX:
                    self._forget()
                self._senders[sender_key] = self._sender

    def _may(self, sender: FastSender, use: object, topic: str, group: str | None) -> bool:
        """Decide as the general path does, and remember what is allowed."""
        resources = [topic_need(topic, self._action)]
        if group is not None:
            resources.append(group_need(group))
        if sender.account.refusal(0, needs_of(resources)) is not None:
            return False
        if self.uses >= _USES_MAX:
            self._forget()
            self._wire = None  # the sender of this request is found anew for the next one
        sender.allowed.add(use)
        self.uses += 1
        return True

    def _forget(self) -> None:
        """Forget all senders."""
        self._senders.clear()
        self.uses = 0
