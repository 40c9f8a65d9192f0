"""Runs the power rig of ``tests/power`` with timer messages instead of messages of delay levels.

They are due within three seconds, so that some wait and some are delivered at each power cut. Each
is to be in its topic once after the start; the rig itself allows a delayed message to be there
twice, because RocketMQ stores it again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "power"))
import rig
from audit import Audit, Store
from load import DELAYED, Tables

DUE_MS_MAX = 3_000


class TimerTables(Tables):
    """The load of the rig whose delayed messages have a time of delivery."""

    def begin(self, topic: str, queue: int, size: int, **properties: str) -> Callable[[], None]:
        if properties.pop("DELAY", None) is not None:
            due_ms = time.time_ns() // 1_000_000 + self.random.randrange(DUE_MS_MAX)
            properties["TIMER_DELIVER_MS"] = str(due_ms)
        return super().begin(topic, queue, size, **properties)


class TimerAudit(Audit):
    """The audit of the rig, which also finds delayed messages that were delivered twice."""

    delivered = 0
    """Messages that were read after all power cuts together."""

    def judge(self, store: Store, gone: list[str], when: str) -> None:
        super().judge(store, gone, when)
        for (topic, queue), content in store.items():
            if topic == DELAYED:
                TimerAudit.delivered += len(content.rows)
                for key, count in Counter(key for _, key, _ in content.rows).items():
                    if count > 1:
                        self.findings.add(
                            "duplicate", f"{when}: {topic} {queue}: {key} {count} times"
                        )


if __name__ == "__main__":
    rig.Tables = TimerTables
    rig.Audit = TimerAudit
    broken = rig.main()
    print(f"{TimerAudit.delivered} timer messages were read")
    sys.exit(broken)
