"""Which instance a producer, consumer or admin client uses, and who closes it.

Objects with the same client id share one instance within a process: the first of them makes it,
with its own settings, and the last one that leaves closes it. If another object was made for it
and is not started yet, the instance can be started again. Since the instance name ``DEFAULT``
becomes a name of its own each time, objects share only if they are given the same name, or an
instance. An instance never outlives a fork: a child makes its own.

Source: MQClientManager, RocketMQ 5.3.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from weakref import WeakValueDictionary

from cometmq.client._connection.identity import client_id
from cometmq.client._connection.instance import ClientInstance, Member, known_name_servers
from cometmq.client.settings import ClientSettings, resolve_settings

_instances: WeakValueDictionary[tuple[int, str], ClientInstance] = WeakValueDictionary()
"""By process and client id; an instance is in it from its making until it is closed."""


class Lease:
    """One object's hold on an instance.

    Args:
        instance: the instance.
        lent: whether the caller starts and closes the instance.
    """

    def __init__(self, instance: ClientInstance, *, lent: bool) -> None:
        self.instance = instance
        self._lent = lent
        self._held = False
        if not lent:
            instance.unopened.add(self)

    async def open(self, member: Member | None = None) -> None:
        """Add a member to the instance, and start the instance unless it is lent.

        If it fails, the caller closes the lease.

        Raises:
            ClientError: the instance has such a member already, was closed, or runs in another
                event loop.
            NameServerError: no name server is named, and the HTTP endpoint names none.
        """
        if member is not None:
            self.instance.join(member)
        if not self._lent and not self._held:
            self._held = True
            self.instance.holds += 1
            self.instance.unopened.discard(self)
            await self.instance.start()

    async def close(self, member: Member | None = None) -> None:
        """Remove the member, and close the instance if no other lease keeps it open."""
        self.instance.unopened.discard(self)
        held, self._held = self._held, False
        if held:
            self.instance.holds -= 1
            if self.instance.holds == 0:
                await self.instance._last_left()
                return
        if member is not None:
            await self.instance.leave(member)


def acquire_instance(
    name_servers: str | Sequence[str] = (),
    *,
    settings: ClientSettings | None = None,
    instance: ClientInstance | None = None,
    keep_name: bool = False,
) -> Lease:
    """Find or make the instance that an object with these settings uses.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses; empty for the setting
            ``name_servers``.
        settings: those of a new instance; one that is shared keeps its own.
        instance: use this one, which the caller starts and closes.
        keep_name: keep the instance name ``DEFAULT``, so that the client id stays the same after a
            restart; clients with it share an instance.

    Raises:
        ConfigError: an address or a setting is wrong.
    """
    if instance is not None:
        return Lease(instance, lent=True)
    used = resolve_settings(ClientSettings, given=settings)
    name = client_id(used, known_name_servers(name_servers, used), keep_name=keep_name)
    found = _instances.get((os.getpid(), name))
    if found is None or found.closed or found.outlived_its_loop:
        found = ClientInstance(name_servers, settings=used, name=name)
        _instances[os.getpid(), name] = found
    return Lease(found, lent=False)
