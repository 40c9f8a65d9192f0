"""Send ten orders per second, and payments of most of them, as data for the other examples.

Payments are in a topic of their own, ``orders-payments`` by default.
Run: ``python examples/spark/00_orders.py [name server] [topic] [how many]``.
"""

import json
import random
import sys
import time
from datetime import UTC, datetime

from cometmq.client import Message
from cometmq.client.blocking import AdminClient, Producer

STATES = ("new", "paid", "shipped")
COUNTRIES = ("AT", "DE", "ES", "FR", "IT")
PAUSE_S = 0.1
UNPAID = 10
"""One order of so many is not paid."""


def now() -> str:
    return datetime.now(UTC).isoformat()


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", count: str = "3000") -> None:
    with AdminClient(name_server) as admin:
        admin.create_topic(topic, queues=4)
        admin.create_topic(f"{topic}-payments", queues=4)
    with Producer(name_server, group="shop") as producer:
        for number in range(int(count)):
            order = {
                "order": f"order-{number}",
                "customer": f"customer-{random.randrange(50)}",
                "country": random.choice(COUNTRIES),
                "amount": random.randrange(100, 20_000) / 100,
                "state": STATES[number % len(STATES)],
                "at": now(),
            }
            body = json.dumps(order).encode()
            producer.send(
                Message(topic=topic, body=body, tags=order["state"], keys=[order["order"]])
            )
            time.sleep(PAUSE_S)
            if number % UNPAID:
                payment = {"order": order["order"], "amount": order["amount"], "at": now()}
                producer.send(f"{topic}-payments", json.dumps(payment).encode())
    print(f"{count} orders sent")


if __name__ == "__main__":
    main(*sys.argv[1:])
