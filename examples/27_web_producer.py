"""Send from a web application without asyncio: one producer for each worker process.

A producer cannot be used after a fork. So ``producer`` starts it at the first call in each process,
and the threads of the process share it. Here ``main`` stands in for a web server that forks. The
environment variable NAMESRV_ADDR names the name servers.
"""

import multiprocessing
import os
import sys
import threading

from cometmq.client import Message
from cometmq.client.blocking import Producer

TOPIC = "orders-of-the-shop"


class ProcessProducer:
    """Starts one producer in each process, when it is first needed."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def __call__(self) -> Producer:
        with self._lock:
            if self._producer is None:
                started = Producer(group="shop")
                started.start()
                self._producer = started
            return self._producer


producer = ProcessProducer()


def order(article: str) -> str:
    """Send an order, as a view of Django or Flask does."""
    receipt = producer().send(Message(topic=TOPIC, body=article.encode()))
    return f"{receipt.status.name}: {article}"


def main(name_server: str = "127.0.0.1:9876") -> None:
    os.environ["NAMESRV_ADDR"] = name_server
    print(order("a hat"))  # in the parent process too, as with a preloaded application
    with multiprocessing.get_context("fork").Pool(2) as workers:
        for line in workers.map(order, ["a coat", "a scarf"]):
            print(line)
    producer().close()


if __name__ == "__main__":
    main(*sys.argv[1:])
