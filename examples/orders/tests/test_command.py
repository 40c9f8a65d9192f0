"""The command ``python -m orders``, with an embedded broker, while its worker is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

FOLDER = Path(__file__).resolve().parent.parent
SOON_S = 90


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def process_of(parent, name):
    """Return the id of a child by a word of its command line."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    named = {child: Path(f"/proc/{child}/cmdline").read_text() for child in children}
    return next(int(child) for child, line in named.items() if name in line)


def wait_until(condition):
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def place(http, article):
    """Place an order and pay it."""
    order = http.post("/orders", json={"article": article, "quantity": 1}).json()["id"]
    http.post(f"/orders/{order}/payment")
    return order


def test_orders_are_shipped_once_though_the_worker_is_killed(tmp_path):
    api, dashboard = free_port(), free_port()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
        "ORDERS_BROKER": f"embedded:{tmp_path}/data",
        "ORDERS_API_PORT": api,
        "ORDERS_DASHBOARD_PORT": dashboard,
    }
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-m", "orders"]
        service = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: service.poll() is None and dashboard in (tmp_path / "log").read_text())
        with httpx.Client(base_url=f"http://127.0.0.1:{api}", timeout=SOON_S) as http:
            article = f"hat-{api}"
            http.put(f"/articles/{article}", json={"price": 12, "stock": 100})
            orders = [place(http, article) for _ in range(15)]
            os.kill(process_of(service.pid, "orders.worker"), signal.SIGKILL)
            orders += [place(http, article) for _ in range(15)]
            for order in orders:
                wait_until(lambda: http.get(f"/orders/{order}").json()["state"] == "shipped")  # noqa: B023
            assert http.get(f"/articles/{article}").json()["stock"] == 70
            place(http, article)
            shown = ("shop-orders process", "messaging.process.messages", "<td>worker")
            url = f"http://127.0.0.1:{dashboard}"
            wait_until(lambda: all(text in httpx.get(url).text for text in shown))
        service.send_signal(signal.SIGINT)
        assert service.wait(SOON_S) == 0
    finally:
        service.terminate()
        service.wait(SOON_S)
    assert "worker ended with -9" in (tmp_path / "log").read_text()
