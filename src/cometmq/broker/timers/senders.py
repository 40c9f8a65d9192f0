"""The account of a timer message: only the account that has sent it, and administrators, recall it.

    TIMER_SENDER    on a waiting message its account, on a recall the account that wants it

Without access control there is none, and whoever may send to the topic recalls, as in RocketMQ. So
it is with a message that was stored then, or by RocketMQ. The property stays with the record that
waits, over restarts and changes of the master, and a delivered message does not have it. A broker
of RocketMQ that takes the store over keeps it on what it delivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cometmq.model import property_names as names
from cometmq.protocol.properties import (
    UNIQ_KEY_MARKER,
    decode_properties,
    encode_properties,
    marker,
    value_of,
)

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.remoting import Request

SENDER: Final = marker(names.TIMER_SENDER.encode())
DEL_KEY: Final = marker(names.TIMER_DEL_UNIQKEY.encode())
REAL_TOPIC: Final = marker(names.REAL_TOPIC.encode())
NO_ACCOUNT: Final = "-"
"""The sender of a request whose signature proves no account."""


class TimerSenders:
    """Names the accounts of senders in properties."""

    def __init__(self) -> None:
        self.access: AccessControl | None = None
        """Knows the accounts; None without access control."""

    def named(self, properties: Mapping[str, str], request: Request | None) -> dict[str, str]:
        """Return the properties of a timer message or a recall with the account of its sender.

        A name that the sender has given counts only if it is an administrator: a broker that sends
        a message on keeps its sender.

        Args:
            properties: its properties; not changed.
            request: the request that sends it; None for what no client has sent.
        """
        changed = dict(properties)
        given = changed.pop(names.TIMER_SENDER, None)
        if self.access is None or request is None:
            return changed
        name, is_administrator = self._sender(self.access, request)
        if not is_administrator:
            changed[names.TIMER_SENDER] = name
        elif given is not None:
            changed[names.TIMER_SENDER] = given
        elif names.TIMER_DEL_UNIQKEY not in changed:  # the recall of an administrator needs none
            changed[names.TIMER_SENDER] = name
        return changed

    @staticmethod
    def _sender(access: AccessControl, request: Request) -> tuple[str, bool]:
        account = access.account_of(request)
        if account is None:
            return NO_ACCOUNT, False
        name = account.name
        if not name:  # of an address
            return NO_ACCOUNT, account.may_do_everything
        is_plain = "\x01" not in name and "\x02" not in name
        return name if is_plain else NO_ACCOUNT, account.is_administrator


class Recallers:
    """The recalls of a slot: which messages they name, and for which accounts they count."""

    def __init__(self) -> None:
        self._accounts: dict[bytes, set[bytes | None]] = {}
        """By topic and unique id; None for an account that recalls messages of all accounts."""

    def add(self, properties: bytes) -> None:
        """Add the recall with these properties."""
        key = value_of(properties, DEL_KEY)
        if key is not None:
            self._accounts.setdefault(key, set()).add(sender_of(properties))

    def recall(self, properties: bytes) -> bool:
        """Return whether one of them recalls the message with these properties."""
        if not self._accounts:
            return False
        topic = value_of(properties, REAL_TOPIC) or b""
        key = value_of(properties, UNIQ_KEY_MARKER) or b""
        accounts = self._accounts.get(topic + b"+" + key)
        sender = sender_of(properties)
        return accounts is not None and (sender is None or not accounts.isdisjoint({None, sender}))


def sender_of(properties: bytes) -> bytes | None:
    """Return the account of a message that waits, or of a recall; None if it has none."""
    return value_of(properties, SENDER)


def without_sender(properties: bytes) -> bytes:
    """Return properties as consumers get them."""
    if value_of(properties, SENDER) is None:
        return properties
    kept = decode_properties(properties)
    del kept[names.TIMER_SENDER]
    return encode_properties(kept)
