"""The settings of our sessions, and the error of a daemon that ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.spark.java import SparkStartError
from cometmq.spark.sessions import _named, session_settings
from support.spark.recipes import recipe


def test_sessions_keep_to_loopback_and_utc() -> None:
    settings = session_settings(cores=3, memory="5g")

    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.driver.memory"] == "5g"


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "k8s://https://10.0.0.1"])
def test_executors_elsewhere_can_reach_the_driver(master: str) -> None:
    assert not {
        name for name in session_settings(master=master) if name.startswith("spark.driver.h")
    }
    assert "spark.driver.bindAddress" not in session_settings(master=master)
    assert session_settings(master="spark://127.0.0.1:7077") == session_settings()


def test_settings_may_be_named_as_keywords_or_as_spark_names_them() -> None:
    named = _named({"spark_local_dir": Path("/x"), "spark.sql.a_b": 1, "spark.c": True})

    assert named == {"spark.local.dir": "/x", "spark.sql.a_b": "1", "spark.c": "true"}


def test_a_daemon_that_ends_is_an_error_that_quotes_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho no room for a heap >&2\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    cluster = recipe("08_small_cluster").StandaloneCluster(folder=tmp_path / "cluster")

    with pytest.raises(SparkStartError, match=r"the master did not come up:\s.*no room for a heap"):
        cluster.start()
    assert cluster.daemons == ()
