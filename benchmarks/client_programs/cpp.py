"""The C++ client through its Python binding under load; see ours.py for arguments and output.

Runs in an environment of its own that has the package ``rocketmq`` 0.4.4.
"""

import json
import os
import sys
import threading
import time
import uuid

from rocketmq.client import Message, Producer, PushConsumer

BODY = b"x" * 128
START_S = 60.0

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the native library prints must not mix with the answer


class Meter:
    """Counts from the end of the warm-up on, for so many seconds."""

    def __init__(self, seconds, warm_s):
        self._seconds = seconds
        self._warm_s = warm_s
        self._lock = threading.Lock()
        self._began = None
        self._before = None
        self.count = 0
        self.figures = None
        self.over = threading.Event()

    def add(self):
        """Count one message."""
        with self._lock:
            self.count += 1
            now = time.perf_counter()
            if self._began is None:
                self._began = now + self._warm_s
            if now < self._began or self.over.is_set():
                return
            if self._before is None:
                self._before = (now, time.process_time(), self.count)
            elif now - self._before[0] >= self._seconds:
                wall, cpu, count = self._before
                self.figures = {
                    "messages": self.count - count,
                    "seconds": now - wall,
                    "cpu_seconds": time.process_time() - cpu,
                }
                self.over.set()


def send(name_servers, topic, seconds, warm_s, window):
    meter = Meter(seconds, warm_s)
    free = threading.Semaphore(window)
    errors = []
    producer = Producer("bench-senders", timeout=8000)
    producer.set_namesrv_addr(name_servers)
    producer.start()

    def done(_):
        free.release()
        meter.add()

    def failed(error):
        errors.append(error)
        done(None)

    while not meter.over.is_set():
        free.acquire()
        message = Message(topic)
        message.set_body(BODY)
        producer.send_async(message, done, failed)
    return {**meter.figures, "errors": len(errors)}


def consume(name_servers, topic, seconds, warm_s, window):
    meter = Meter(seconds, warm_s)
    consumer = PushConsumer(f"bench-{uuid.uuid4().hex}")
    consumer.set_namesrv_addr(name_servers)

    def handler(message):
        if len(message.body) != len(BODY):
            raise ValueError("a body of another size")
        meter.add()

    consumer.subscribe(topic, handler)
    consumer.start()
    if not meter.over.wait(START_S + warm_s + seconds):
        raise TimeoutError(f"{meter.count} messages came")
    return meter.figures


def main():
    name_servers, what, topic, seconds, window, _, warm_s = sys.argv[1:]
    figures = {"send": send, "consume": consume}[what](
        name_servers, topic, float(seconds), float(warm_s), int(window)
    )
    print(json.dumps(figures), file=answers, flush=True)
    os._exit(0)  # the library's own threads do not always end


main()
