"""RocketMQ's Python client for gRPC, in an environment of its own. Argument: the address."""

import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

WAIT_S = 30.0
printing = threading.Lock()
left = 7
pushed, checked = threading.Event(), threading.Event()


def show(text):
    with printing:
        print(text, flush=True)


class Listener(MessageListener):
    def consume(self, message):
        global left
        properties = ", ".join(f"{k}={v}" for k, v in sorted(message.properties.items()))
        body = message.body.decode()
        show(
            f"push {message.topic} {body} {message.tag or '-'} {','.join(sorted(message.keys))}"
            f" {{{properties}}} {message.message_group or '-'} {message.delivery_attempt}"
        )
        left -= 1
        if not left:
            pushed.set()
        again = body == "again" and message.delivery_attempt < 2
        return ConsumeResult.FAILURE if again else ConsumeResult.SUCCESS


class Checker(TransactionChecker):
    def check(self, message):
        checked.set()
        return TransactionResolution.COMMIT


def message(topic, body, **more):
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def main():
    configuration = ClientConfiguration(sys.argv[1], Credentials())
    every = FilterExpression()
    topics = {"normal": FilterExpression("a || b"), "fifo": every, "late": every}
    consumer = PushConsumer(configuration, "python-push", Listener(), topics)
    consumer.startup()
    simple = SimpleConsumer(configuration, "python-simple", {"half": every}, await_duration=5)
    simple.startup()
    producer = Producer(configuration, ("normal", "fifo", "late", "half"), checker=Checker())
    producer.startup()
    first = message("normal", "one", tag="a", keys="k1")
    first.keys = "k2"
    first.add_property("shop", "Bern")
    producer.send(first)
    producer.send(message("normal", "other", tag="c"))
    producer.send(message("normal", "again", tag="b"))
    for number in range(3):
        producer.send(message("fifo", f"f{number}", message_group="g"))
    producer.send(message("late", "late", delivery_timestamp=int(time.time()) + 1))
    transaction = producer.begin_transaction()
    producer.send(message("half", "committed"), transaction)
    transaction.commit()
    transaction = producer.begin_transaction()
    producer.send(message("half", "dropped"), transaction)
    transaction.rollback()
    transaction = producer.begin_transaction()
    producer.send(message("half", "checked"), transaction)
    missing = 2
    while missing:
        for found in simple.receive(16, 30):
            simple.change_invisible_duration(found, 60)
            simple.ack(found)
            show(f"simple {found.topic} {found.body.decode()}")
            missing -= 1
    show(f"checked {str(checked.wait(WAIT_S)).lower()}")
    show(f"pushed {str(pushed.wait(WAIT_S)).lower()}")
    for client in (consumer, simple, producer):
        client.shutdown()


main()
