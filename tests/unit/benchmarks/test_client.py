"""The rules of the comparison of clients: rows, ratios, targets."""

import subprocess
import sys

import machine
import pytest
from client_programs import meter
from client_rows import table_lines
from figures import Figure, Figures
from machine import Noise

FACTS = {"cores": "2", "commit": machine.commit()}
CPU = "CPU per message"


@pytest.fixture
def results(tmp_path):
    return Figures(tmp_path / "f.json", FACTS, {"seconds": 3}, noise_max=0.3)


def take(results, row, server, values):
    results.servers[server] = {"title": server}
    results.taken += [
        Figure(number, server, row, each, Noise(0, 0)) for number, each in enumerate(values, 1)
    ]


def target_of(results, row_title, client, metric):
    lines = table_lines(results, results.servers)
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in lines]
    (target,) = [
        target
        for title, _, *measured, _, _, target, _ in cells
        if title.startswith(row_title) and measured == [client, metric]
    ]
    return target


def test_a_ratio_is_demanded_to_each_java_client_and_to_no_other(results):
    for server, cost in {"cometmq": 4.0, "java-4.9.8": 12.0, "java-5.3.3": 11.0}.items():
        take(results, "awaited", server, [{"rate": 50.0, CPU: cost}] * 5)
    take(results, "awaited", "nats-py", [{"rate": 50.0, CPU: 1.0}] * 5)

    def target(client, metric=CPU):
        return target_of(results, "awaited sends", client, metric)

    assert target("java-4.9.8") == "≥ x3 met"
    assert target("java-5.3.3") == "≥ x3 missed"
    assert [target("cometmq"), target("nats-py"), target("java-5.3.3", "rate")] == [""] * 3


def test_a_client_before_must_not_have_cost_less(results):
    for row, title, metric in [
        ("handler", "messages of 128 B through a handler, one by one", CPU),
        ("many", "1,000 consumers", "memory at rest"),
    ]:
        take(results, row, "cometmq", [{metric: 100.0}] * 5)
        take(results, row, "cometmq-before", [{metric: 98.0 if row == "many" else 90.0}] * 5)
        said = target_of(results, title, "cometmq-before", metric)
        assert said == ("≥ x0.97 met" if row == "many" else "≥ x0.97 missed")


def test_the_cost_of_an_idle_consumer_has_a_value_as_its_target(results):
    take(results, "idle", "cometmq", [{"CPU at rest": 0.31, "memory at rest": 20.0}] * 5)
    assert target_of(results, "idle consumer", "cometmq", "CPU at rest") == "≤ 0.3 missed"


def test_a_checkout_that_was_not_set_up_is_refused(tmp_path):
    command = [sys.executable, "benchmarks/client.py", "--plan", "--before", str(tmp_path)]
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"there is no {tmp_path}/.venv/bin/python; give a checkout" in done.stderr


def test_figures_of_a_backlog_that_ended_are_refused(monkeypatch):
    """They would be those of a client that waits."""
    monkeypatch.setattr(meter, "MORE_S_MAX", 0)
    counted = meter.Meter(seconds=0, warm_s=0)
    counted.count = 5
    with pytest.raises(TimeoutError, match="after 5 messages"):
        counted.run()
    assert counted.over
