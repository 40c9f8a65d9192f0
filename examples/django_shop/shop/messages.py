"""Sends orders: one producer for each process, started when it is first needed."""

import os
import threading

from cometmq.client import Message
from cometmq.client.blocking import Producer

TOPIC = "django-orders"


class ProcessProducer:
    """A producer does not survive a fork, so each process has one. Its threads share it."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def __call__(self) -> Producer:
        with self._lock:
            if self._producer is None:
                started = Producer(group="django-shop")
                started.start()
                self._producer = started
            return self._producer


producer = ProcessProducer()


def send_order(number: int) -> None:
    producer().send(Message(topic=TOPIC, body=b"%d" % number, keys=[f"order-{number}"]))
