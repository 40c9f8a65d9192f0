"""Create the topics and groups of an application when it is deployed.

A second run changes nothing. A topic that has more queues than its declaration ends the program
with an error: messages in the queues that would be removed could not be consumed any more.
"""

import asyncio
import sys

from cometmq.client import AdminClient

TOPICS = {"shop-orders": 8, "shop-order-events": 8, "shop-mails": 4}
ORDERED = {"shop-order-events"}
GROUPS = ("shop-payments", "shop-shipping", "shop-mailing")


async def deploy_topic(admin: AdminClient, topic: str, queues: int) -> str:
    brokers = set((await admin.cluster_info()).broker_addr_table)
    known = topic in await admin.topics()
    configs = await admin.topic_configs(topic) if known else {}
    now = {config.write_queue_nums for config in configs.values()}
    if now == {queues} and brokers == configs.keys():
        return "unchanged"
    if now and max(now) > queues:
        sys.exit(f"topic {topic} has {max(now)} queues on a broker, expected at most {queues}")
    await admin.create_topic(topic, queues=queues, ordered=topic in ORDERED)
    return f"created with {queues} queues on each broker"


async def main(name_server: str = "127.0.0.1:9876") -> None:
    async with AdminClient(name_server) as admin:
        for topic, queues in TOPICS.items():
            print(f"topic {topic}: {await deploy_topic(admin, topic, queues)}")
        missing = set(GROUPS) - set(await admin.groups())
        for group in GROUPS:
            if group in missing:
                await admin.create_group(group)
            print(f"group {group}: {'created' if group in missing else 'unchanged'}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
