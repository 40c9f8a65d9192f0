"""The recipes for clusters, Kubernetes and Compose: their schemas, and how they fit together."""

from __future__ import annotations

import functools
import os
import re
import shlex
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from build_ext import ROOT
from cometmq.broker.config import BrokerSettings
from cometmq.cli import configurations
from cometmq.cli.server_options import parse
from cometmq.console.access.sign_in import SIGN_IN
from cometmq.metrics.config import PROMETHEUS, MetricsSettings
from cometmq.system.configuration import Configuration
from integration.test_deployment import passes, tool, understood
from tools.generate import prometheus_rule
from tools.generate.root import stale

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
EXAMPLE = DEPLOY / "kubernetes" / "example"
IMAGES = ("registry.example/cometmq", "registry.example/cometmq-console")
VERSIONS = ("1.32", "1.37")
"""Of Kubernetes: one with the label pod-index out of its beta, and the newest."""
OF_OPERATOR = "monitoring.coreos.com/v1"
"""The API of the Prometheus Operator, which Kubernetes' schemas lack."""
CONFIGURATIONS = {
    "namesrv": configurations.namesrv_configuration,
    "broker": configurations.broker_configuration,
    "controller": configurations.controller_configuration,
}
LIMITS = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}


def built(folder: Path) -> list[dict[str, Any]]:
    """What kustomize makes of a folder."""
    return list(yaml.safe_load_all(passes(tool("kubectl"), "kustomize", folder)))


# It reads the schemas of a version once, and not for each manifest.
utils.schema_contents = functools.cache(utils.schema_contents)


@functools.cache
def manifests() -> list[dict[str, Any]]:
    """What kustomize makes of the example."""
    return built(EXAMPLE)


def fitting(found: Iterable[Mapping[str, Any]], version: str = VERSIONS[-1]) -> int:
    """Check manifests with Kubernetes' schemas; return how many there are schemas for.

    Raises:
        kubernetes_validate.ValidationError: a manifest does not fit, or has an unknown field.
    """
    checked = [each for each in found if each["apiVersion"] != OF_OPERATOR]
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)
    return len(checked)


def changed(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write a kustomization that adds something to the example; return its folder."""
    resources = [os.path.relpath(EXAMPLE, folder)]
    text = yaml.safe_dump({"resources": resources, **values})
    (folder / "kustomization.yaml").write_text(text)
    return folder


def named(kind: str) -> dict[str, dict[str, Any]]:
    """The manifests of a kind, by name."""
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == kind}


def workloads() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the manifest of all that makes pods."""
    yield from (named("StatefulSet") | named("Deployment")).items()


def pod(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The specification of the pods, which have one container."""
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    assert len(found["containers"]) == 1
    return found


def labels(workload: Mapping[str, Any]) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def selected(labels_: Mapping[str, str]) -> set[str]:
    """The workloads whose pods have these labels."""
    return {name for name, each in workloads() if labels_.items() <= labels(each).items()}


def ports(workload: Mapping[str, Any]) -> dict[int, str]:
    """The ports of the container, and their names."""
    listed = pod(workload)["containers"][0]["ports"]
    return {port["containerPort"]: port["name"] for port in listed}


def arguments(name: str, workload: Mapping[str, Any]) -> list[str]:
    """The arguments of the container in the first pod, as the kubelet fills them in."""
    values = {
        "metadata.name": f"{name}-0",
        "metadata.namespace": workload["metadata"]["namespace"],
        "metadata.labels['apps.kubernetes.io/pod-index']": "0",
        **{f"metadata.labels['{key}']": value for key, value in labels(workload).items()},
    }
    container = pod(workload)["containers"][0]
    variables = {
        each["name"]: each.get("value") or values[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container.get("env", ())
    }
    filled = re.compile(r"\$\((\w+)\)")
    return [filled.sub(lambda at: variables[at[1]], word) for word in container["args"]]


def settings_of(words: list[str], file: Path) -> Configuration:
    """The settings of a server with these arguments, and with this file in place of its own."""
    options = parse(words)
    assert options is not None, words
    return CONFIGURATIONS[words[0]](options._replace(config=file))


def of_cometmq() -> Iterator[tuple[str, dict[str, Any]]]:
    """The workloads of the servers."""
    for name, workload in workloads():
        if pod(workload)["containers"][0]["image"].startswith(f"{IMAGES[0]}:"):
            yield name, workload


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Configuration]:
    """The settings of the first pod of each server."""
    found = {}
    for name, workload in of_cometmq():
        [mounted] = [volume["secret"] for volume in pod(workload)["volumes"]]
        [(file, text)] = named("Secret")[mounted["secretName"]]["data"].items()
        words = arguments(name, workload)
        assert f"--config=/etc/cometmq/{file}" in words
        path = tmp_path / f"{name}.conf"
        path.write_bytes(b64decode(text))
        found[name] = settings_of(words, path)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    assert fitting(manifests(), version) == len(manifests()) - 2
    assert {name for name, _ in workloads()} == {
        *("namesrv", "etcd", "controller", "console", "broker-a", "broker-b")
    }


def test_a_manifest_with_an_unknown_field_fits_no_schema() -> None:
    wrong = {**manifests()[0], "unknown": 1}

    with pytest.raises(kubernetes_validate.ValidationError):
        fitting([wrong])


def test_every_broker_has_a_name_and_an_address_of_its_own(
    settings: dict[str, Configuration],
) -> None:
    for name in ("broker-a", "broker-b"):
        found = settings[name][BrokerSettings]
        assert found.broker_name == name
        assert found.broker_ip1 == f"{name}-0.brokers.cometmq.svc.cluster.local"
        assert found.broker_election_priority == 0
    assert (
        settings["controller"].properties()["controllerIP"].startswith("controller-0.controller.")
    )


def test_every_server_that_a_setting_names_is_a_pod(settings: dict[str, Configuration]) -> None:
    replicas = {name: each["spec"]["replicas"] for name, each in named("StatefulSet").items()}
    members = {f"{name}-{i}.{name}" for name, count in replicas.items() for i in range(count)}
    texts = [
        settings["broker-a"].properties()["namesrvAddr"],
        settings["broker-a"].properties()["controllerAddr"],
        settings["controller"].properties()["controllerStore"].removeprefix("etcd://"),
        pod(named("Deployment")["console"])["containers"][0]["env"][0]["value"],
    ]
    hosts = {each.rpartition(":")[0] for text in texts for each in re.split("[;,]", text)}

    assert hosts == {each for each in members if not each.startswith("broker-")}


def test_servers_listen_where_probes_and_services_expect_them(
    settings: dict[str, Configuration],
) -> None:
    for name, workload in of_cometmq():
        metrics = settings[name][MetricsSettings]
        assert (metrics.exporter, metrics.host) == (PROMETHEUS, "0.0.0.0")
        assert settings[name].properties()["bindAddress"] == "0.0.0.0"
        assert ports(workload)[metrics.port] == "metrics"
        container = pod(workload)["containers"][0]
        assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}
        listen = "9876" if name == "namesrv" else settings[name].properties()["listenPort"]
        assert ports(workload)[int(listen)] == "remoting"
    monitored = named("PodMonitor")["cometmq"]["spec"]
    assert [each["port"] for each in monitored["podMetricsEndpoints"]] == ["metrics"]
    assert set(monitored["selector"]["matchExpressions"][0]["values"]) == {
        labels(workload)["app.kubernetes.io/component"] for _, workload in of_cometmq()
    }


def test_services_budgets_and_policies_select_the_pods_they_are_for() -> None:
    brokers = {"broker-a", "broker-b"}
    for name, service in named("Service").items():
        expected = brokers if name == "brokers" else {name}
        assert selected(service["spec"]["selector"]) == expected
        for port in service["spec"]["ports"]:
            for each in expected:
                target = port.get("targetPort", port["port"])
                assert target in {*ports(dict(workloads())[each]), "http"}
    for name, budget in named("PodDisruptionBudget").items():
        assert selected(budget["spec"]["selector"]["matchLabels"]) == {name}
    for name, policy in named("NetworkPolicy").items():
        chosen = selected(policy["spec"]["podSelector"]["matchLabels"])
        assert chosen == {"broker": brokers, "metrics": {name for name, _ in workloads()}}.get(
            name, {name}
        )
        allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        for each in chosen - {"etcd", "console"} if name == "metrics" else chosen:
            assert allowed <= set(ports(dict(workloads())[each]))
    for name, each in named("StatefulSet").items():
        service = named("Service")[each["spec"]["serviceName"]]["spec"]
        assert service["clusterIP"] == "None"
        assert name in selected(service["selector"])


def test_pods_have_few_rights_and_write_to_volumes_only() -> None:
    probe = pod(named("Deployment")["console"])["containers"][0]["readinessProbe"]
    assert probe["httpGet"]["path"] == SIGN_IN
    for name, workload in workloads():
        found = pod(workload)
        container = found["containers"][0]
        assert found["automountServiceAccountToken"] is False, name
        assert found["securityContext"]["runAsNonRoot"] is True, name
        assert container["securityContext"] == LIMITS | {"capabilities": {"drop": ["ALL"]}}, name
        assert {"requests", "limits"} == set(container["resources"]), name


def test_servers_take_tls_and_accounts_from_secrets(tmp_path: Path) -> None:
    secured = os.path.relpath(EXAMPLE.parent / "secured", tmp_path)
    empty = tmp_path / "empty.conf"
    empty.touch()
    servers = dict(of_cometmq())
    found = built(changed(tmp_path, {"components": [secured]}))
    fitting(found)
    for each in found:
        name = each["metadata"]["name"]
        if each["kind"] != "StatefulSet" or name not in servers:
            continue
        mounts = {m["name"]: m["mountPath"] for m in pod(each)["containers"][0]["volumeMounts"]}
        settings = settings_of(arguments(name, each), empty).properties()
        assert settings["tls.server.mode"] == "enforcing"
        assert settings["aclEnable"] == "true"
        assert f"{settings['rocketmqHome']}/conf" == mounts["accounts"]
        for key in ("tls.server.certPath", "tls.server.keyPath", "tls.client.trustCertPath"):
            assert str(Path(settings[key]).parent) == mounts["tls"]
        del servers[name]

    assert servers == {}


def test_the_changes_of_the_page_fit_the_manifests(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "deploy-on-kubernetes.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    patches = [patch for block in blocks for patch in yaml.safe_load(block)["patches"]]
    found = built(changed(tmp_path, {"patches": patches}))
    fitting(found)
    sets = {
        each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "StatefulSet"
    }
    broker = sets["broker-a"]

    assert len(blocks) == 3
    assert set(sets) == {"namesrv", "controller", "broker-a", "broker-b"}
    assert broker["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast-ssd"
    assert "affinity" not in broker["template"]["spec"]
    assert sets["controller"]["template"]["spec"]["containers"][0]["args"][-1].startswith("--set=")


def test_brokers_start_and_restart_in_an_order_that_elects_masters() -> None:
    for name in ("broker-a", "broker-b"):
        spec = named("StatefulSet")[name]["spec"]
        container = pod(named("StatefulSet")[name])["containers"][0]
        startup = container["startupProbe"]
        assert spec["podManagementPolicy"] == "Parallel"
        assert spec["minReadySeconds"] > BrokerSettings().sync_broker_metadata_period_ms / 1000
        assert startup["periodSeconds"] * startup["failureThreshold"] == 24 * 3600
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 60
        [term] = spec["template"]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert selected(term["labelSelector"]["matchLabels"]) == {name}


def test_dashboards_and_alerts_are_those_of_the_other_recipes() -> None:
    dashboards = named("ConfigMap")["cometmq-dashboards"]
    files = {path.name: path.read_text() for path in (DEPLOY / "grafana").glob("*.json")}
    rules = yaml.safe_load((DEPLOY / "alerts" / "cometmq.yml").read_text())

    assert dashboards["data"] == files
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert named("PrometheusRule")["cometmq"]["spec"] == rules
    assert stale(prometheus_rule.files()) == [], "run make generate"


# ---- Compose


def test_the_compose_file_fits_its_schema_and_names_files_that_exist() -> None:
    path = DEPLOY / "compose.yaml"
    passes(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", path)
    services = COMPOSE["services"]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (DEPLOY / "Containerfile").read_text(), re.M)

    for service in services.values():
        if build := service.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
            assert build["target"] in stages
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
        for config in service.get("configs", ()):
            assert config["source"] in COMPOSE["configs"]


def test_the_servers_of_the_compose_file_understand_their_settings(tmp_path: Path) -> None:
    services = COMPOSE["services"]
    servers = [name for name, each in services.items() if each.get("image") == "cometmq"]
    found = {}
    for name in servers:
        file = tmp_path / f"{name}.conf"
        sources = [each["source"] for each in services[name].get("configs", ())]
        file.write_text("".join(COMPOSE["configs"][source]["content"] for source in sources))
        found[name] = settings_of(services[name]["command"], file)
        metrics = found[name][MetricsSettings]
        assert (metrics.exporter, metrics.host) == (PROMETHEUS, "0.0.0.0")
        assert services[name]["healthcheck"]["test"][-1] == f"ready={metrics.port}"
        address = {"controller": "controllerIP"}.get(name, "brokerIP1")
        assert found[name].properties().get(address, name) == name
    targets = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["scrape_configs"][0]

    assert {each.rpartition(":")[0] for each in targets["static_configs"][0]["targets"]} == set(
        servers
    )
    assert servers == ["namesrv", "controller", "broker-1", "broker-2"]


def test_the_first_user_of_the_console_is_made_by_a_command_that_exists() -> None:
    [words] = re.findall(
        r" console (console-user .+)$", (DEPLOY / "compose.yaml").read_text(), re.M
    )
    understood(shlex.split(words))
