"""The audit log has one line for each entry, whatever a visitor calls itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cometmq.console.access.audit import RESULT_MAX, TEXT_MAX, AuditLog
from cometmq.model.errors import ConfigError


def test_each_entry_is_one_line_with_who_when_and_from_where(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    log.add(user="ada\n{}\ud800" + "x" * 1000, address="192.0.2.1", action="sign-in", result="done")
    path.rename(tmp_path / "audit.log.1")  # as logrotate does
    log.add(user="bob", address="::1", action="sign-out", result="done")

    [first] = (tmp_path / "audit.log.1").read_text().splitlines()
    [second] = path.read_text().splitlines()
    assert path.stat().st_mode & 0o777 == 0o600
    entry = json.loads(first)
    assert len(entry.pop("user")) == TEXT_MAX
    assert entry.pop("time").endswith("Z")
    assert entry == {"address": "192.0.2.1", "action": "sign-in", "result": "done"}
    assert json.loads(second)["user"] == "bob"


def test_a_line_that_a_full_disk_cuts_off_is_an_error_and_spoils_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:9]))
        with pytest.raises(OSError, match="No space left"):
            log.add(user="ada", address="::1", action="topics/create", result="begun")
    log.add(user="bob", address="::1", action="sign-in", result="x" * 10_000)

    assert path.read_text().startswith('{"time":"\n{"time"')
    assert [(each.user, len(each.result)) for each in log.recent()] == [("bob", RESULT_MAX)]


def test_a_log_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected an audit log that can be written"):
        AuditLog(tmp_path / "missing" / "audit.log")
    AuditLog(None).add(user="ada", address="", action="sign-in", result="done")
