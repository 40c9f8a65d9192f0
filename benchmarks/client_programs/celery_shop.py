"""A Celery application whose only task does nothing: ``python celery_shop.py COUNT`` publishes it.

The environment names the broker, its options, and the file into which each task writes a byte.
"""

from __future__ import annotations

import json
import os
import sys
import time

from celery import Celery

if os.environ["BROKER"].startswith("cometmq:"):
    import cometmq.celery  # noqa: F401 - makes the scheme known

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=int(os.environ["PREFETCH_MULTIPLIER"]),
    broker_transport_options=json.loads(os.environ["BROKER_OPTIONS"]),
    broker_heartbeat=0,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)
done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task(name="tick")
def tick(number: int) -> None:
    """Note that it ran."""
    os.write(done, b".")


def main() -> None:
    """Publish; the first line of standard input begins it. Print seconds, and seconds of CPU."""
    tick.delay(0)  # connects
    print("ready", flush=True)
    sys.stdin.readline()
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(1, int(sys.argv[1])):
        tick.delay(number)
    print(time.perf_counter() - began, time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    main()
