"""The settings of our sessions, and errors if Java or a daemon is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.spark.sessions import (
    SparkStartError,
    StandaloneCluster,
    _named,
    find_java,
    session_settings,
)


def fake_java(home: Path, script: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


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


def test_java_of_java_home_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, "#!/bin/sh\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert find_java() == str(java)


def test_a_missing_java_is_said_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkStartError, match="JAVA_HOME is not set: Spark needs Java 17"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkStartError, match=r"below JAVA_HOME=\S+nowhere: Spark needs Java 17"):
        find_java()


def test_a_java_that_is_too_old_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "#!/bin/sh\necho 'openjdk version \"11.0.26\" 2025-01-21' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkStartError, match=r"is of version 11: Spark needs Java 17 or newer"):
        find_java()


def test_a_daemon_that_ends_is_an_error_that_quotes_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "java", "#!/bin/sh\necho no room for a heap >&2\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    cluster = StandaloneCluster(folder=tmp_path / "cluster")

    with pytest.raises(SparkStartError, match=r"the master did not come up:\s.*no room for a heap"):
        cluster.start()
    assert cluster.daemons == ()
