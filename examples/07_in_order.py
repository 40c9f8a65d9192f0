"""Keep the order of each customer's events: they all go to the same queue."""

import asyncio
import os

from cometmq.client import Message, Producer, PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-customers"
CUSTOMERS = ["alice", "bob", "carol"]
STEPS = ["registered", "ordered", "paid"]


async def main() -> None:
    async with Producer(NAME_SERVERS, group="example-producer") as producer:
        for step in STEPS:
            for customer in CUSTOMERS:
                event = Message(topic=TOPIC, body=step.encode(), keys=[customer])
                await producer.send(event, order_key=customer)

    steps: dict[str, list[str]] = {customer: [] for customer in CUSTOMERS}
    async with PullConsumer(NAME_SERVERS, group="example-ordered") as consumer:
        await consumer.assign(await consumer.fetch_queues(TOPIC))
        async for message in consumer:
            steps[message.keys[0]].append(message.body.decode())
            if all(len(done) == len(STEPS) for done in steps.values()):
                await consumer.commit()
                break
    for customer, done in steps.items():
        print(f"{customer}: {' -> '.join(done)}")


asyncio.run(main())
