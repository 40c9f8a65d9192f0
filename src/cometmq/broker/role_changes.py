"""Lets the features of a broker follow its role.

A slave that becomes the master stores nothing until it has corrected what the log says otherwise;
then it accepts sends, and takes over what a master does beside serving requests. If the role
changes again meanwhile, that ends at once.
"""

from __future__ import annotations

import asyncio
import logging

from cometmq.broker.core import Core
from cometmq.broker.life import Life
from cometmq.model.errors import StoreError
from cometmq.remoting import Supervisor

log = logging.getLogger(__name__)


class RoleChanges:
    """Calls the hooks of the features when the role has changed.

    Args:
        core: of the broker; its role is followed once the broker serves requests.
        life: of the features.
    """

    def __init__(self, core: Core, life: Life) -> None:
        self._core = core
        self._life = life
        self._tasks = Supervisor("role")
        self._taking_over: asyncio.Task[None] | None = None
        self._is_stopped = False

    def follow(self) -> None:
        """Follow the role from now on."""
        self._core.role.on_change(self._changed)

    async def stop(self) -> None:
        """Follow it no more."""
        self._is_stopped = True
        await self._tasks.cancel()

    def _changed(self) -> None:
        """Start or stop what only masters do."""
        role, store = self._core.role, self._core.store
        self._core.role_changed()  # ahead of what appends as a master
        if self._is_stopped:
            return
        log.info("role changed role=%s broker_id=%d", role.name, role.broker_id)
        if self._taking_over is not None:
            self._taking_over.cancel()
        if not role.is_slave:
            store.hold("this broker is about to take the place of its master")
            role.in_force.clear()
        self._life.role_changed()
        if role.is_slave:
            store.release()
            role.in_force.set()
        else:
            self._taking_over = self._tasks.spawn(self._take_over(), "take-over")

    async def _take_over(self) -> None:
        """Do what a master does beside serving requests; a change of the role cancels it."""
        role, store = self._core.role, self._core.store
        try:  # with synchronous flush, reads find only what is on the disk
            await asyncio.get_running_loop().run_in_executor(None, store.flush)
        except StoreError as problem:
            log.warning("cannot flush the log: %s", problem)
        if role.is_slave:
            return
        await self._life.before_sends()
        if role.is_slave:
            return
        store.release()
        role.in_force.set()
        await self._life.take_over()
