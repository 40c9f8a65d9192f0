"""The C++ client through its Python binding under load; see ours.py for arguments and output.

Runs in an environment of its own that has the package ``rocketmq`` 0.4.4.
"""

import json
import os
import sys
import threading
import uuid

from meter import Meter
from rocketmq.client import Message, Producer, PushConsumer

BODY = b"x" * 128

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the native library prints must not mix with the answer
lock = threading.Lock()


def send(name_servers, topic, meter, window):
    free = threading.Semaphore(window)
    producer = Producer("bench-senders", timeout=8000)
    producer.set_namesrv_addr(name_servers)
    producer.start()

    def done(_):
        free.release()
        with lock:
            meter.count += 1

    def failed(error):
        meter.errors += 1
        done(error)

    while not meter.over:
        free.acquire()
        message = Message(topic)
        message.set_body(BODY)
        producer.send_async(message, done, failed)


def handler(name_servers, topic, meter, window):
    consumer = PushConsumer(f"bench-{uuid.uuid4().hex}")
    consumer.set_namesrv_addr(name_servers)

    def handle(message):
        if len(message.body) != len(BODY):
            raise ValueError(f"a body of {len(message.body)} bytes, expected {len(BODY)}")
        with lock:
            meter.count += 1

    consumer.subscribe(topic, handle)
    consumer.start()
    threading.Event().wait()  # the consumer's own threads call the handler


def main():
    name_servers, work, topic, seconds, window, _, warm_s = sys.argv[1:]
    meter = Meter(float(seconds), float(warm_s))
    load = {"send": send, "handler": handler}[work]
    arguments = (name_servers, topic, meter, int(window))
    threading.Thread(target=load, args=arguments, daemon=True).start()
    status = 1
    try:
        print(json.dumps(meter.run()), file=answers, flush=True)
        status = 0
    finally:
        os._exit(status)  # the library's own threads do not always end


main()
