"""The transport of Kombu, and with it of Celery, on CometMQ's and RocketMQ's brokers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

import cometmq
from cometmq.client import (
    ClientError,
    CometError,
    RemotingError,
    ResponseError,
)
from cometmq.client.blocking.portal import acquire_portal, release_portal
from cometmq.kombu.calls import SessionCalls
from cometmq.kombu.channel import Channel
from cometmq.kombu.link import LinkOptions
from cometmq.kombu.session import Session
from cometmq.model.address import host_and_port

SCHEME = "cometmq"
CONNECT_S = 5.0
_OPTIONS = ("visibility_timeout", "delivery_limit", "queues", "delay_min", "delay_step")


class Transport(SessionCalls, virtual.Transport):
    """Connects Kombu to brokers.

    ``cometmq://user:password@host:9876/virtual-host`` names a name server. Options, in
    ``transport_options``:

    - ``name_servers``: all name servers, ``host:port;host:port``, instead of the URL's.
    - ``visibility_timeout``: seconds until the messages of a killed process are redelivered, 60.
    - ``delivery_limit``: redeliveries after which a message is dead-lettered, 16.
    - ``delay_min``: messages with an ETA that is as many seconds away, or more, wait at the broker,
      10; ``math.inf`` has up to 1,000 wait in each worker.
    - ``delay_step``: seconds of the longest timer message, 172,800.
    - ``queues``: queues of a new topic on each broker, 1.
    - ``client``: other settings of the client, such as ``use_tls``.
    """

    Channel = Channel
    default_port = 9876
    driver_type = SCHEME
    driver_name = SCHEME
    connection_errors = (
        *virtual.Transport.connection_errors,
        RemotingError,
        ClientError,  # such as: no broker is registered yet
        OSError,
    )
    channel_errors = (*virtual.Transport.channel_errors, ResponseError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
    )

    def __init__(self, client: Any, **named: Any) -> None:
        super().__init__(client, **named)
        self.open_calls()

    def driver_version(self) -> str:
        """Return CometMQ's version."""
        return cometmq.__version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return a URL, without its password."""
        from kombu.utils.url import maybe_sanitize_url

        return uri if include_password else str(maybe_sanitize_url(uri, mask))

    # --- lifecycle ----------------------------------------------------------------------------

    def _session_options(self) -> LinkOptions:
        client, given = self.client, self.client.transport_options
        settings = dict(given.get("client") or {})
        if client.userid:
            settings |= {"access_key": client.userid, "secret_key": client.password or ""}
        host, port = client.hostname or "localhost", client.port or self.default_port
        return LinkOptions(
            name_servers=given.get("name_servers") or host_and_port(host, port),
            client=settings,
            virtual_host=client.virtual_host or "/",
            **{name: given[name] for name in _OPTIONS if name in given},
        )

    def establish_connection(self) -> Transport:
        """Connect.

        Raises:
            CometError, TimeoutError: no server responds.
        """
        options, limit = self._session_options(), self.client.connect_timeout or CONNECT_S
        self._portal, self._pid = acquire_portal(), os.getpid()
        try:
            self.unsettled.clear()  # in a forked child they are the parent's
            self.fetchers.clear()
            self.session = self._portal.call(Session, options, self.wake)
            self._portal.run(self.session.start(), limit)
        except BaseException:
            self._release_portal()
            raise
        super().establish_connection()
        return self

    def close_connection(self, connection: Any) -> None:
        """Close the channels and the connections."""
        self.leave_hub()
        super().close_connection(connection)
        if self._is_ours():
            try:
                self._portal.run(self.session.close())
            finally:
                self._release_portal()

    def _release_portal(self) -> None:
        portal, self._portal = self._portal, None
        release_portal(portal)

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connection is open; lost ones of its servers are made again."""
        return self._is_ours()

    def recall(self, task_id: str) -> int:
        """Recall a task that waits in a broker's timer; return how many messages it had there.

        Raises:
            CometError: a broker refused, or did not respond.
        """
        recalled, failures = self.recall_all([task_id])
        if failures:
            raise failures[0]
        return recalled.get(task_id, 0)

    def recall_all(self, task_ids: Sequence[str]) -> tuple[dict[str, int], list[CometError]]:
        """Recall several tasks, until one fails.

        Returns:
            How many messages of each task were recalled, and the failures.
        """
        return self.run(self.link.recall_all(task_ids))

    # --- the application's thread -------------------------------------------------------------

    def pump(self) -> bool:
        """Deliver what there is, and fetch more; return whether there was anything."""
        delivered = False
        for channel in list(self.channels):
            if not channel.closed:
                delivered = channel.pump() or delivered
        return delivered

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver messages; wait for the first one.

        Raises:
            TimeoutError: there was none for ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._woken.clear()
            if self.pump():
                return
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError
            self._woken.wait(remaining)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver in the loop of a worker from now on."""
        self.join_hub(loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver in no loop any more."""
        self.leave_hub()


def register() -> None:
    """Make the scheme ``cometmq`` known to Kombu, and ``rocketmq`` if Kombu has none."""
    path = f"{__name__}:Transport"
    TRANSPORT_ALIASES[SCHEME] = path
    TRANSPORT_ALIASES.setdefault("rocketmq", path)
