"""A Celery application with results, and a task with a countdown, which waits at the broker.

In production the worker is a process: ``celery -A shop worker``. Here it is a thread.
"""

import sys

from celery import Celery
from celery.contrib.testing.worker import start_worker

import cometmq.celery  # noqa: F401 - makes the scheme cometmq:// known

NAME_SERVER = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
app = Celery(
    "shop",
    broker=f"cometmq://{NAME_SERVER}",
    backend="rpc://",
    control="cometmq.celery:Control",  # revoke() recalls tasks that wait at the broker
)


@app.task(acks_late=True, reject_on_worker_lost=True)
def price(hats: int) -> int:
    """Return what hats cost."""
    return hats * 12


def main() -> None:
    with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
        print("2 hats cost", price.delay(2).get(timeout=30))
        later = price.apply_async((3,), countdown=1)
        print("3 hats cost", later.get(timeout=30))
    app.backend.result_consumer.stop()


if __name__ == "__main__":
    main()
