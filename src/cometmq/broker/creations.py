"""Limits what requests create by using it: topics by sends, groups by heartbeats and pulls.

A client that uses ever new names fills tables that slaves and name servers copy. So a broker
creates topics and groups in this way up to limits: as many as its tables may hold, as one account
may have created since the start, and as one connection may create. With ``autoCreateAclEnable`` an
account also needs a right of its own. Requests that create topics and groups by name are for
administrators, and have no limits.

RocketMQ has neither.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from cometmq.access.needs import Action, Need, ResourceType, topic_need
from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.system.failure_log import RateLimitedLog

if TYPE_CHECKING:
    from cometmq.broker.access.control import AccessControl
    from cometmq.remoting import Peer, Request

log = logging.getLogger(__name__)

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
NAME_CHARS_SHOWN: Final = 300


class CreationLimits:
    """Counts what requests have created, and refuses more than the settings allow.

    Args:
        settings: returns the current settings of the broker.
    """

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings
        self.access: AccessControl | None = None
        """Knows the accounts; None without access control."""
        self._in_progress: Counter[ResourceType] = Counter()
        self._owners: dict[tuple[ResourceType, str], str] = {}
        """The account that has created a topic or a group since the start."""
        self._of_account: Counter[str] = Counter()
        self._of_connection: WeakKeyDictionary[Peer, int] = WeakKeyDictionary()
        self._refusals = RateLimitedLog(log, "topics and groups were not created")
        self.settle_log = self._refusals.settle

    @contextmanager
    def creating(
        self, kind: ResourceType, name: str, present: int, request: Request | None
    ) -> Iterator[None]:
        """Allow a creation, and count it unless it fails.

        Args:
            kind: what is created.
            name: its name.
            present: how many there are of that kind.
            request: the request that needs it; None for a creation of the broker's own.

        Raises:
            ResponseError: the account may not create it, or there are too many.
        """
        if request is None:
            yield
            return
        account = self._allowed(kind, name, present, request)
        self._in_progress[kind] += 1
        self._count(kind, name, account, request.connection, 1)
        try:
            yield
        except BaseException:
            self._count(kind, name, account, request.connection, -1)
            raise
        finally:
            self._in_progress[kind] -= 1

    def forget(self, kind: ResourceType, name: str) -> None:
        """Give the account room for another one: this one is deleted."""
        account = self._owners.pop((kind, name), None)
        if account is not None:
            self._of_account[account] -= 1
            if self._of_account[account] <= 0:
                del self._of_account[account]

    def _count(
        self, kind: ResourceType, name: str, account: str, connection: Peer, more: int
    ) -> None:
        self._of_connection[connection] = self._of_connection.get(connection, 0) + more
        if more < 0:
            self.forget(kind, name)
        elif account and (kind, name) not in self._owners:
            self._owners[kind, name] = account
            self._of_account[account] += 1

    def _allowed(self, kind: ResourceType, name: str, present: int, request: Request) -> str:
        """Return the account that creates; empty for none."""
        settings = self._settings()
        account = ""
        if self.access is not None:
            need = (
                topic_need(name, Action.CREATE)
                if kind == TOPIC
                else Need(GROUP, name, Action.CREATE)
            )
            account = self.access.creator(request, need, settings.auto_create_acl_enable)
        for count, limit, key, of in (
            (
                present + self._in_progress[kind],
                *(
                    (settings.auto_create_topic_max, "autoCreateTopicMax")
                    if kind == TOPIC
                    else (settings.auto_create_group_max, "autoCreateSubscriptionGroupMax")
                ),
                "this broker has",
            ),
            (
                self._of_account[account] if account else 0,
                settings.auto_create_account_max,
                "autoCreateAccountMax",
                f"requests of the account {account[:NAME_CHARS_SHOWN]} have created",
            ),
            (
                self._of_connection.get(request.connection, 0),
                settings.auto_create_connection_max,
                "autoCreateConnectionMax",
                "requests of this connection have created",
            ),
        ):
            if count >= limit:
                raise self._refused(
                    kind, name, request, f"{of} {count}, the limit is {key}={limit}"
                )
        return account

    def _refused(
        self, kind: ResourceType, name: str, request: Request, reason: str
    ) -> ResponseError:
        what = kind.lower()
        remark = (
            f"{what}[{name[:NAME_CHARS_SHOWN]}] not exist, and it is not created: {reason}."
            f" Create the {what} by an administrator's request, delete unused ones, or raise the"
            " limit"
        )
        self._refusals.add("%s peer=%s", remark, request.connection.peer_text)
        return ResponseError(
            ResponseCode.TOPIC_NOT_EXIST
            if kind == TOPIC
            else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            remark,
        )
