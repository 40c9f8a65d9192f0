"""The loop of the blocking client, run by the steps of another loop, with its timers."""

from __future__ import annotations

import asyncio
import select
import threading

from cometmq.client.blocking.portal import acquire_portal, release_portal


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
        assert not found
        portal.leave()
    finally:
        release_portal(portal)
