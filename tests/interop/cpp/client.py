"""The C++ client through its Python wrapper, driven line by line; see ../programs.py.

Runs in an environment of its own that has the package ``rocketmq`` 0.4.4, which carries the
native library. Argument: the name server.
"""

import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer
from rocketmq.consts import MessageProperty
from rocketmq.ffi import MessageModel

ASYNC_SECONDS_MAX = 15.0
USER_PROPERTIES = ("p", "colour")

namesrv = sys.argv[1]
answers = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(2, 1)  # what the native library prints must not mix with the answers
emitting = threading.Lock()
producers = {}
consumers = {}


def emit(line):
    with emitting:
        answers.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def text(value):
    return None if value is None else value.decode()


def build(topic, item):
    message = Message(topic)
    message.set_body(item["body"])
    if "tag" in item:
        message.set_tags(item["tag"])
    if "keys" in item:
        message.set_keys(item["keys"])
    if "delay" in item:
        message.set_delay_time_level(item["delay"])
    for name, value in item.get("properties", {}).items():
        message.set_property(name, value)
    return message


def result(sent):
    return {"status": "SEND_" + sent.status.name, "id": sent.msg_id, "offset": sent.offset}


def received(message):
    properties = {name: text(message.get_property(name)) for name in USER_PROPERTIES}
    return {
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": text(message.tags),
        "keys": text(message.keys),
        "properties": {name: value for name, value in properties.items() if value},
        "id": message.id,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "reconsumed": message.reconsume_times,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "now_ms": int(time.time() * 1000),
        "unique_id": text(message.get_property(MessageProperty.UNIQUE_CLIENT_MESSAGE_ID_KEYIDX))
        if hasattr(MessageProperty, "UNIQUE_CLIENT_MESSAGE_ID_KEYIDX")
        else None,
    }


def sign(made):
    if "CLIENT_ACCESS_KEY" in os.environ:
        account = os.environ["CLIENT_ACCESS_KEY"], os.environ["CLIENT_SECRET_KEY"]
        made.set_session_credentials(*account, "ALIYUN")


def producer(group, has_defaults):
    if group not in producers:
        made = Producer(group) if has_defaults else Producer(group, timeout=8000)
        made.set_namesrv_addr(namesrv)
        sign(made)
        made.start()
        producers[group] = made
    return producers[group]


def send(command):
    sender = producer(command["group"], command.get("defaults", False))
    messages = [build(command["topic"], item) for item in command["messages"]]
    style = command["style"]
    if style == "sync":
        return [result(sender.send_sync(message)) for message in messages]
    if style == "async":
        return send_async(sender, messages)
    if style == "oneway":
        return [sender.send_oneway(message) for message in messages]
    if style == "ordered":
        shard = sum(command["shard"].encode())
        return [result(sender.send_orderly(message, shard)) for message in messages]
    raise ValueError(f"unknown style {style}")


def send_async(sender, messages):
    done = threading.Semaphore(0)
    outcomes = []

    def finish(outcome):
        outcomes.append(outcome)
        done.release()

    for message in messages:
        sender.send_async(message, lambda sent: finish(result(sent)), lambda error: finish(error))
    for _ in messages:
        if not done.acquire(timeout=ASYNC_SECONDS_MAX):
            raise TimeoutError("an asynchronous send gave no callback")
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def consume(command):
    name = command["name"]
    mode = command["mode"]
    model = MessageModel.BROADCASTING if mode == "broadcast" else MessageModel.CLUSTERING
    consumer = PushConsumer(command["group"], orderly=mode == "orderly", message_model=model)
    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    consumer.set_instance_name(name)
    consumer.set_thread_count(2)

    def on_message(message):
        emit({"event": "message", "consumer": name, **received(message)})
        if message.body.startswith(b"retry") and message.reconsume_times == 0:
            raise ValueError("fails on purpose")

    consumer.subscribe(command["topic"], on_message, command["expression"])
    consumer.start()
    consumers[name] = consumer


def pull(command):
    consumer = PullConsumer(command["group"])
    consumer.set_namesrv_addr(namesrv)
    sign(consumer)
    consumer.start()
    try:
        return [received(m) for m in consumer.pull(command["topic"], command["expression"])]
    finally:
        consumer.shutdown()


def stop(command):
    consumers.pop(command["name"]).shutdown()


COMMANDS = {"send": send, "consume": consume, "pull": pull, "stop": stop}


def main():
    for line in sys.stdin.buffer:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        answer = {"reply": command["id"]}
        try:
            answer["result"] = COMMANDS[command["do"]](command)
        except Exception as error:  # the test must hear of any failure
            answer["error"] = f"{type(error).__name__}: {error}"
        emit(answer)
    for started in [*producers.values(), *consumers.values()]:
        started.shutdown()
    os._exit(0)  # the library's own threads do not always end


main()
