"""The checks of settings: each with settings that have the mistake, and with some that have not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.cli.doctor import server_checks, settings
from cometmq.cli.doctor.findings import Level, run_checks
from cometmq.cli.doctor.host import Host
from cometmq.client.settings import ClientSettings, resolve_settings
from cometmq.system.configuration import Configuration

GOOD = "namesrvAddr=127.0.0.1:9876\n"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "ROCKETMQ_HOME"):
        monkeypatch.delenv(name, raising=False)


def read(folder: Path, text: str, server: str = "broker") -> Configuration:
    path = folder / "server.conf"
    path.write_text(text)
    path.chmod(0o600)
    return server_checks.SERVERS[server](path, None)


def test_good_settings_are_fine(tmp_path: Path) -> None:
    [finding] = settings.settings(read(tmp_path, GOOD), "broker.conf")

    assert finding.level is Level.FINE


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("diskSpaceCleanForciblyRatio=70\n", "diskSpaceCleanForciblyRatio=70"),
        ("diskSpaceWarningLevelRatio=80\n", "diskSpaceWarningLevelRatio=80"),
        ("enableCalcFilterBitMap=true\n", "enableConsumeQueueExt=false"),
        ("enableRemoteEscape=true\n", "enableSlaveActingMaster=false"),
        ("haHousekeepingInterval=5000\n", "haSendHeartbeatInterval=5000"),
        (
            "enableSlaveActingMaster=true\nbrokerHeartbeatInterval=9000\n",
            "brokerNotActiveTimeoutMillis=10000",
        ),
        ("inSyncReplicas=2\n", "brokerRole=ASYNC_MASTER"),
        ("flushDiskType=ASYNC_FLUSH\n", "ASYNC_FLUSH"),
        ("cutDamagedLog=true\n", "cutDamagedLog"),
        ("fileReservedTime=0\n", "fileReservedTime=0"),
        ("brokerPermission=4\n", "clients may not write"),
        ("bindAddress=0.0.0.0\n", "without access control"),
        (
            'innerClientAuthenticationCredentials={"accessKey":1,"secretKey":"hush"}\n',
            "innerClientAuthenticationCredentials=(hidden)",
        ),
        (
            "bindAddress=0.0.0.0\nauthenticationEnabled=true\n",
            "access control with tls.server.mode=permissive",
        ),
        (
            "aclEnable=true\nrocketmqHome=/x\nauthenticationEnabled=true\n",
            "together with settings of users",
        ),
        ("tls.server.mode=enforcing\n", "do not check their certificates"),
        ("tls.server.need.client.auth=require\n", "plain clients are accepted"),
        ("metricsExporterType=PROM\nmetricsPromExporterHost=0.0.0.0\n", "no access control"),
        (
            "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9878\nallAckInSyncStateSet=false\n",
            "allAckInSyncStateSet=false",
        ),
        (
            "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9878\n"
            "controllerHeartBeatTimeoutMills=1000\n",
            "controllerHeartBeatTimeoutMills=1000",
        ),
        ("brokerIP1=no.such.host.invalid\n", "brokerIP1=no.such.host.invalid"),
        ("namesrvAddr=192.0.2.1:9876\n", "registers 127.0.0.1"),
        ("namesrvAddr=\n", "namesrvAddr is not set"),
        ("useTLS=true\n", "useTLS has no effect here"),
    ],
)
def test_a_risk_or_a_contradiction_is_found(tmp_path: Path, text: str, met: str) -> None:
    found = list(settings.settings(read(tmp_path, GOOD + text), "broker.conf"))

    assert any(met in each.met for each in found), found
    assert all(each.level is not Level.FINE for each in found)
    assert all(each.expected and each.action for each in found)


@pytest.mark.parametrize(
    "text",
    [
        "enableCalcFilterBitMap=true\nenableConsumeQueueExt=true\n",
        "enableRemoteEscape=true\nenableSlaveActingMaster=true\n",
        "brokerRole=SYNC_MASTER\ninSyncReplicas=2\n",
        "brokerRole=SLAVE\nbrokerId=1\nbrokerPermission=4\n",
        "bindAddress=192.0.2.7\naclEnable=true\nrocketmqHome=/x\ntls.server.mode=enforcing\n"
        "tls.client.authServer=true\n",
        "bindAddress=192.0.2.7\nauthenticationEnabled=true\ntls.server.mode=enforcing\n"
        "tls.client.authServer=true\n",
        "enableControllerMode=true\ncontrollerAddr=127.0.0.1:9878\n",
        "metricsExporterType=PROM\n",
    ],
)
def test_the_same_settings_together_with_what_they_need_are_fine(tmp_path: Path, text: str) -> None:
    [finding] = settings.settings(read(tmp_path, GOOD + text), "broker.conf")

    assert finding.level is Level.FINE, finding


def test_the_settings_of_a_controller_are_checked(tmp_path: Path) -> None:
    parts = read(
        tmp_path,
        "enableElectUncleanMaster=true\ncontrollerStore=etcd://192.0.2.1:2379\n",
        "controller",
    )

    found = [each.met for each in settings.settings(parts, "controller.conf")]

    assert found == [
        "enableElectUncleanMaster=true",
        "controllerStore=etcd://192.0.2.1:2379 without TLS",
    ]


@pytest.mark.parametrize("server", ["namesrv", "controller"])
@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("", "bindAddress=0.0.0.0 without access control"),
        ("aclEnable=true\nrocketmqHome=/x\n", "access control with tls.server.mode=permissive"),
        (
            "aclEnable=true\nrocketmqHome=/x\ntls.server.mode=enforcing\n"
            'innerClientAuthenticationCredentials={"accessKey":"a"}\n',
            "innerClientAuthenticationCredentials=(hidden): expected"
            ' {"accessKey":"…","secretKey":"…"}',
        ),
    ],
)
def test_access_to_other_servers_is_checked(
    tmp_path: Path, server: str, text: str, met: str
) -> None:
    parts = read(tmp_path, f"bindAddress=0.0.0.0\n{text}", server)

    assert met in [each.met for each in settings.settings(parts, server)]


@pytest.mark.parametrize("server", ["namesrv", "controller"])
def test_default_settings_of_other_servers_are_fine(tmp_path: Path, server: str) -> None:
    [finding] = settings.settings(read(tmp_path, "", server), server)

    assert finding.level is Level.FINE, finding


async def test_a_mistake_is_a_finding_with_the_nearest_key_and_the_host_is_checked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("flushDiskTyp=SYNC_FLUSH\nlistenPorts=1\n")

    findings = await run_checks(server_checks.checks("broker", path, None, Host()), 60)

    mistakes = [each for each in findings if each.check == "settings"]
    assert [each.level for each in mistakes] == [Level.PROBLEM, Level.PROBLEM]
    assert "did you mean flushDiskType?" in mistakes[0].met
    assert mistakes[1].met.startswith(f"{path}:2: there is no setting 'listenPorts'")
    assert "certificates and the store are not examined before" in mistakes[1].action
    assert {"open-files", "memory"} < {each.check for each in findings}


async def test_the_clocks_are_compared_once_if_the_cluster_is_examined_too(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr=127.0.0.1:1\n")

    names = [
        [
            each.name
            for each in server_checks.checks("broker", path, None, Host(), compares_clocks=one)
        ]
        for one in (True, False)
    ]

    assert [each.count("clocks") for each in names] == [1, 0]


def test_without_an_account_of_the_broker_that_of_the_client_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_CLIENT_ACCESS_KEY", "admin")
    monkeypatch.setenv("COMETMQ_CLIENT_SECRET_KEY", "a secret key")
    own = 'innerClientAuthenticationCredentials={"accessKey":"broker","secretKey":"another"}\n'
    parts = [read(tmp_path, text) for text in ("", own)]

    found = [
        resolve_settings(ClientSettings, given=server_checks.client_settings(each))
        for each in parts
    ]

    assert [each.access_key for each in found] == ["admin", "broker"]


# --- files with secrets ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "level"),
    [(0o600, Level.FINE), (0o640, Level.FINE), (0o644, Level.PROBLEM), (0o660, Level.PROBLEM)],
)
@pytest.mark.parametrize(
    "text",
    [
        "tls.server.keyPassword=secret\n",
        'initAuthenticationUser={"username":"u","password":"secret"}\n',
    ],
)
def test_a_configuration_file_that_others_can_read_is_found(
    tmp_path: Path, text: str, mode: int, level: Level
) -> None:
    parts = read(tmp_path, GOOD + text)
    path = tmp_path / "server.conf"
    path.chmod(mode)

    [finding] = settings.secret_files(parts, path)

    assert finding.level is level
    assert "secret" not in finding.met.removeprefix("secret-files")


def test_a_configuration_file_without_secrets_may_be_read(tmp_path: Path) -> None:
    parts = read(tmp_path, GOOD)
    (tmp_path / "server.conf").chmod(0o644)

    assert list(settings.secret_files(parts, tmp_path / "server.conf")) == []


def test_files_of_accounts_and_keys_that_others_can_read_are_found(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "acl" / "team").mkdir(parents=True)
    key = tmp_path / "server.key"
    for path in (conf / "plain_acl.yml", conf / "acl" / "team" / "a.yml", key):
        path.touch(mode=0o644)
        path.chmod(0o644)
    (conf / "plain_acl.yml").chmod(0o600)
    text = f"aclEnable=true\nrocketmqHome={tmp_path}\ntls.server.keyPath={key}\n"

    found = settings.secret_files(read(tmp_path, text), None)

    assert {Path(each.subject).name: each.level for each in found} == {
        "server.key": Level.PROBLEM,
        "plain_acl.yml": Level.FINE,
        "a.yml": Level.PROBLEM,
    }


def test_folders_of_users_that_others_can_read_are_found(tmp_path: Path) -> None:
    for name, mode in (("users", 0o755), ("acls", 0o700)):
        (tmp_path / "auth" / name).mkdir(parents=True)
        (tmp_path / "auth" / name).chmod(mode)
    text = f"authenticationEnabled=true\nauthConfigPath={tmp_path}/auth\n"

    open_one, closed = settings.secret_files(read(tmp_path, text), None)

    assert open_one.level is Level.PROBLEM
    assert f"chmod 0700 {tmp_path}/auth/users" in open_one.action
    assert closed.level is Level.FINE


def test_users_are_by_default_beside_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "config" / "users"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    text = f"authorizationEnabled=true\nstorePathRootDir={tmp_path}/store\n"

    [finding] = settings.secret_files(read(tmp_path, text), None)

    assert (finding.subject, finding.level) == (str(folder), Level.PROBLEM)


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("broker", "migrateAuthFromV1Enabled=true\n"),
        ("namesrv", "aclEnable=true\n"),
        ("controller", "aclEnable=true\n"),
    ],
)
def test_files_of_accounts_of_each_server_are_checked(
    tmp_path: Path, server: str, text: str
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").touch()
    (tmp_path / "conf" / "plain_acl.yml").chmod(0o604)
    more = f"rocketmqHome={tmp_path}\n"
    if server == "broker":
        more += f"storePathRootDir={tmp_path}/none\n"

    [finding] = settings.secret_files(read(tmp_path, text + more, server), None)

    assert (finding.level, finding.subject.endswith("plain_acl.yml")) == (Level.PROBLEM, True)


async def test_malformed_credentials_are_a_finding_that_hides_them(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(GOOD + 'innerClientAuthenticationCredentials={"accessKey":1,"x":"hush"}\n')

    findings = await run_checks(
        [
            each
            for each in server_checks.checks("broker", path, None, Host())
            if each.name == "clocks"
        ],
        60,
    )

    assert ["(hidden)" in each.met and "ConfigError" in each.met for each in findings] == [True]
    assert "hush" not in str(findings)


def test_the_password_file_of_a_controller_is_checked(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.touch()
    password.chmod(0o604)
    parts = read(tmp_path, f"controllerStorePasswordFile={password}\n", "controller")

    [finding] = settings.secret_files(parts, None)

    assert finding.level is Level.PROBLEM
