"""The selection of the tests that a change touches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runner import affected

FILES = {
    "src/cometmq/__init__.py": "",
    "src/cometmq/client/__init__.py": "from cometmq.client.producer import Producer",
    "src/cometmq/client/producer.py": "from cometmq.client.routes import Routes",
    "src/cometmq/client/routes.py": "",
    "src/cometmq/broker/delay/levels.py": "",
    "tests/support/sending.py": "from cometmq.client import Producer",
    "tests/unit/test_routes.py": "import cometmq.client.routes",
    "tests/unit/test_sends.py": "import support.sending",
    "tests/unit/test_topics.py": "from cometmq.model import topic",
    "tests/unit/docs/test_pages.py": "",
    "tests/unit/test_layout.py": "",
    "tests/faults/test_delay_kills.py": "",
}


@pytest.fixture(autouse=True)
def _tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(affected, "ROOT", tmp_path)
    affected.forget()
    yield
    affected.forget()


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/cometmq/client/routes.py", ["unit/test_routes.py", "unit/test_sends.py"]),
        ("src/cometmq/client/producer.pxd", ["unit/test_sends.py"]),
        ("src/cometmq/broker/delay/levels.py", ["faults/test_delay_kills.py"]),
        ("tests/support/sending.py", ["unit/test_sends.py"]),
        ("tests/unit/test_topics.py", ["unit/test_topics.py"]),
        ("tests/unit/test_removed.py", []),
        ("README.md", ["unit/docs/test_pages.py"]),
        ("pyproject.toml", ["unit/test_layout.py"]),
    ],
)
def test_a_change_touches_the_tests_that_import_it_or_are_named_after_it(
    changed: str, tests: list[str]
) -> None:
    assert affected.affected_tests([changed]) == [f"tests/{test}" for test in tests]
