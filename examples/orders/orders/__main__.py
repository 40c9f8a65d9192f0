"""Runs the whole service: ``python -m orders``. Ctrl-C ends it."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

API = os.environ.get("ORDERS_API_PORT", "8000")
DASHBOARD = os.environ.get("ORDERS_DASHBOARD_PORT", "4318")
PYTHON = [sys.executable, "-m"]
SERVE = [*PYTHON, "uvicorn", "--log-level", "warning"]
PARTS = {
    "dashboard": [*SERVE, "orders.dashboard:app", "--port", DASHBOARD],
    "api": [*SERVE, "orders.api:app", "--port", API],
    "worker": [*PYTHON, "faststream", "run", "orders.worker:app"],
}
TELEMETRY = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{DASHBOARD}",
    "OTEL_BSP_SCHEDULE_DELAY": "500",
    "OTEL_METRIC_EXPORT_INTERVAL": "2000",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signals: list[int] = []
"""Those that arrived: the first one ends the service."""
SHORT_S, STOP_S = 10.0, 30.0
TEXT = f"""\
API            http://127.0.0.1:{API}
dead letters   http://127.0.0.1:{API}/dead-letters
dashboard      http://127.0.0.1:{DASHBOARD}
"""


def is_healthy() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{API}/health", timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


def start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C ends them one after the other, in `run`."""
    return subprocess.Popen(command, env=environment, start_new_session=True)


def run(environment: dict[str, str]) -> int:
    """Run the processes, and start one again that ends; return 1 if it cannot run."""
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    is_announced = False
    try:
        while not signals:
            for name, command in PARTS.items():
                process, begun_s = running.get(name, (None, 0.0))
                if process is not None and process.poll() is not None:
                    print(f"{name} ended with {process.returncode}", flush=True)
                    if process.returncode >= 0 and time.monotonic() - begun_s < SHORT_S:
                        return 1  # it was not killed: it would end again
                    process = None
                if process is None:
                    running[name] = start(command, environment), time.monotonic()
            if not is_announced and (is_announced := is_healthy()):
                print(TEXT, flush=True)
            time.sleep(0.2)
        return 0
    finally:
        for process, _ in reversed(running.values()):  # the dashboard last: it gets the last spans
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, lambda number, _: signals.append(number))
    subprocess.run([*PYTHON, "orders.models"], check=True)
    sys.exit(run({**os.environ, **TELEMETRY}))
