"""Makes the PrometheusRule of ``deploy/kubernetes`` of the alert rules."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from tools.generate.root import ROOT

ALERTS = ROOT / "deploy/alerts/cometmq.yml"
FILE = ROOT / "deploy/kubernetes/monitoring/prometheus-rule.yaml"
HEAD = """\
# Written by make generate from deploy/alerts/cometmq.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: cometmq
spec:
"""


def files() -> Iterator[tuple[Path, str]]:
    """The file and its text."""
    rules = ALERTS.read_text(encoding="utf-8")
    yield FILE, HEAD + textwrap.indent(rules[rules.index("groups:") :], "  ")
