"""The loop of the blocking client, run by the steps of another loop, with its timers."""

from __future__ import annotations

import asyncio
import select
import threading

from cometmq.client.blocking.portal import acquire_portal, release_portal
from support.checks.waiting import wait_until


def test_another_loop_runs_this_one_by_steps() -> None:
    portal = acquire_portal()
    try:
        descriptor = portal.join()
        assert descriptor is not None
        found: list[object] = []

        async def work() -> None:
            found.append(threading.current_thread())
            await asyncio.sleep(0)
            found.append("did not wait")
            await asyncio.sleep(0.05)
            found.append("waited")

        pause_s = portal.step(lambda: asyncio.ensure_future(work()))
        assert found == [threading.current_thread(), "did not wait"]
        assert 0 < pause_s <= 0.05
        portal.leave()
        while len(found) < 3:  # its own thread goes on
            portal.run(asyncio.sleep(0.01))
        portal.join()
        portal.soon(found.clear)
        assert select.select([descriptor], [], [], 60)[0] or not found
        portal.step()
        wait_until(lambda: not found)  # its own thread may be faster
        portal.leave()
    finally:
        release_portal(portal)


def test_a_step_does_not_wait_for_a_thread_that_runs_the_loop_on() -> None:
    portal = acquire_portal()
    blocked, gate, called = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        gate.wait(60)

    try:
        assert portal.join() is not None
        portal.soon(block)
        assert blocked.wait(60)
        portal.step(called.set)  # signals of the main thread are deferred for so long
        assert not called.is_set()
        gate.set()
        assert called.wait(60)
        portal.leave()
    finally:
        gate.set()
        release_portal(portal)
