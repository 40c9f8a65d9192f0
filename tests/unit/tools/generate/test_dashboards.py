"""Alert rules, dashboards and runbook: they speak of metrics that exist, and of each other."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import toolchain
import yaml

from tools.generate import dashboards, pages
from tools.generate.root import stale

ALERTS = pages.ROOT / "deploy/alerts/cometmq.yml"
DASHBOARDS = sorted((pages.ROOT / "deploy/grafana").glob("*.json"))
RUNBOOK = pages.ROOT / "docs/howto/runbook.md"
_CONTROLLERS = "role|active_broker_num|election_total|request_total|request_latency"
METRIC = re.compile(rf"(?<![\w-])(?:(?:rocketmq|cometmq)_[a-z0-9_]+|{_CONTROLLERS})(?![\w-])")
OF_HISTOGRAM = re.compile("_(bucket|sum|count)$")
RUNTIME = "rocketmq_brokeruntime_"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@functools.cache
def shown() -> set[str]:
    """The metrics that the reference page says servers have."""
    page = (pages.ROOT / "docs/reference/metrics.md").read_text()
    names = re.findall(r"`([a-z0-9_]+)\*?`", page.partition("## What RocketMQ has")[0])
    return {name for name in names if METRIC.fullmatch(name)}


def in_sources() -> set[str]:
    """All names in the sources of the servers, and what stands behind each of their underscores."""
    sources = pages.ROOT / "src/cometmq"
    texts = (path.read_text() for path in sources.rglob("*.py") if "client" not in path.parts)
    name = re.compile(r"(?<=[\"\s/_])[a-z0-9_]+(?=[\"\s])")
    names = {found for text in texts for found in name.findall(text)}
    return names | {found[at.end() :] for found in names for at in re.finditer("_", found)}


def expressions() -> Iterator[str]:
    """Every expression of rules and dashboards."""
    yield from (rule["expr"] for rule in RULES)
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            yield from (target["expr"] for target in panel["targets"])


def used() -> set[str]:
    """The metrics that expressions use."""
    return {name for text in expressions() for name in metrics_of(text)}


def metrics_of(text: str) -> set[str]:
    """The metrics of an expression; of the series of a histogram, the histogram."""
    names, known = METRIC.findall(without_labels(text)), shown()
    return {name if name in known else OF_HISTOGRAM.sub("", name) for name in names}


def without_labels(text: str) -> str:
    """An expression without label values and the names of labels."""
    return re.sub(r"\bby \([^)]*\)", "", re.sub(r"\{[^}]*\}", "", text))


def test_expressions_and_pages_name_metrics_that_exist() -> None:
    sources = in_sources()
    assert len(used()) > 40
    for name in used() | shown():
        known = name.removeprefix(RUNTIME)
        known = name.replace("rocketmq_storage_", "") if known == name else known
        assert known in sources or name == RUNTIME, name
    listed = {name for name in used() if not name.startswith(RUNTIME)}
    assert listed <= shown()


def test_dashboards_use_the_labels_that_the_reference_page_lists() -> None:
    page = (pages.ROOT / "docs/reference/metrics.md").read_text()
    common = {"cluster", "node_id", "node_type", "instance", "job", "le", "group"}
    for text in expressions():
        names = {name for name in metrics_of(text) if not name.startswith(RUNTIME)}
        if len(names) != 1:
            continue
        (name,) = names
        row = next(line for line in page.splitlines() if f"`{name}`" in line)
        labels = re.findall(r"(\w+)[=!]~?\"", text)
        labels += re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", text)))
        if "| the same" in row:
            continue
        assert set(labels) - common <= set(re.findall(r"\w+", row)), (name, labels)


def test_dashboards_are_those_that_the_program_writes() -> None:
    assert stale(dashboards.files()) == [], "run make generate"
    assert sorted(path for path, _ in dashboards.files()) == DASHBOARDS


def test_each_alert_has_an_entry_in_the_runbook_and_each_entry_an_alert() -> None:
    entries = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert entries == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/howto/runbook.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_do_not_overlap(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))


@pytest.mark.needs("promtool")
def test_prometheus_accepts_every_expression(tmp_path: Path) -> None:
    promtool = toolchain.command("promtool")
    subprocess.run([promtool, "check", "rules", str(ALERTS)], check=True)
    rules = [{"record": f"r{n}", "expr": text} for n, text in enumerate(expressions())]
    for rule in rules:
        rule["expr"] = re.sub(r"\$\w+", ".*", rule["expr"])
    file = tmp_path / "dashboards.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    subprocess.run([promtool, "check", "rules", "--lint=none", str(file)], check=True)
