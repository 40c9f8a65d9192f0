"""Send ten orders per second, as data for the other examples.

Run: ``python examples/spark/00_orders.py [name server] [topic] [how many]``.
"""

import json
import random
import sys
import time

from cometmq.client import Message
from cometmq.client.blocking import AdminClient, Producer

STATES = ("new", "paid", "shipped")
COUNTRIES = ("AT", "DE", "ES", "FR", "IT")
PAUSE_S = 0.1


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders", count: str = "3000") -> None:
    with AdminClient(name_server) as admin:
        admin.create_topic(topic, queues=4)
    with Producer(name_server, group="shop") as producer:
        for number in range(int(count)):
            order = {
                "order": f"order-{number}",
                "customer": f"customer-{random.randrange(50)}",
                "country": random.choice(COUNTRIES),
                "amount": random.randrange(100, 20_000) / 100,
                "state": STATES[number % len(STATES)],
            }
            body = json.dumps(order).encode()
            producer.send(
                Message(topic=topic, body=body, tags=order["state"], keys=[order["order"]])
            )
            time.sleep(PAUSE_S)
    print(f"{count} orders sent")


if __name__ == "__main__":
    main(*sys.argv[1:])
