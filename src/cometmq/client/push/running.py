"""What administrators are told of a running consumer.

Source: DefaultMQPushConsumerImpl.consumerRunningInfo, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import cast

from cometmq.client.config import Checked
from cometmq.client.instance import ClientInstance
from cometmq.client.push.engine import Engine
from cometmq.client.push.subscriptions import Subscriptions
from cometmq.model.offsets import QueueOffset
from cometmq.protocol.bodies import ConsumerRunningInfo, ConsumeType
from cometmq.protocol.version import CURRENT_VERSION, version_name
from cometmq.system.settings import describe

STACKS_CHARS_MAX = 512 * 1024


def running_info(
    instance: ClientInstance, engine: Engine, subscriptions: Subscriptions
) -> ConsumerRunningInfo:
    """Put together what is known of a consumer."""
    return ConsumerRunningInfo(
        properties=common_properties(
            instance,
            engine.settings,
            group=engine.group,
            concurrency=engine.concurrency,
            started_ms=engine.started_ms,
            ordered=engine.wish.ordered,
        ),
        subscription_set=subscriptions.data(),
        mq_table={
            fetched.queue: fetched.info(engine.store.position(fetched.queue) or QueueOffset(0))
            for fetched in engine.queues.process_queues()
        },
        status_table={topic: engine.statistics.status(topic) for topic in subscriptions.topics()},
    )


def common_properties(
    instance: ClientInstance,
    settings: Checked,
    *,
    group: str,
    concurrency: int,
    started_ms: int,
    ordered: bool,
) -> dict[str, str]:
    """Say the settings by RocketMQ's names, and what else mqadmin shows of any consumer."""
    kind = cast(type, type(settings))
    options = {
        each.key: each.render(getattr(settings, each.name))
        for each in describe(kind)
        if not each.secret
    }
    addresses = "".join(f"{address};" for address in instance.name_servers.addresses)
    return options | {
        "consumerGroup": group,
        "PROP_NAMESERVER_ADDR": addresses,
        "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
        "PROP_CONSUMEORDERLY": "true" if ordered else "false",
        "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
        "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
    }


def stacks() -> str:
    """Say where every thread and every task of this process is, in at most 512 Ki characters."""
    return "\n".join([*_threads(), *_tasks()])[:STACKS_CHARS_MAX]


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"


def _tasks() -> Iterator[str]:
    for task in asyncio.all_tasks():
        lines = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
            for frame in task.get_stack(limit=8)
        ]
        yield "\n".join([f"task {task.get_name()}", *lines, ""])
