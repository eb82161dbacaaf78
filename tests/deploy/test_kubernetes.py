"""The Kubernetes manifests: valid, restricted, probed where they listen, and given the time that they need to stop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from effectonce.telemetry.endpoints import parse_address
from tests.telemetry.scrape import exposed

from .files import DEPLOY, MANIFESTS, containers_of, manifest, manifests, our_containers, parse, pod_of
from .shop import Shop

#: The oldest version that is still supported upstream, and the newest with a schema.
VERSIONS = ("1.32", kubernetes_validate.latest_version())
OURS = list(our_containers())


def name_of(value: Any) -> str | None:
    return value["name"] if isinstance(value, dict) and "name" in value else ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_it_is_valid(file: Path, version: str) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_does_not_exist_is_noticed() -> None:
    document = manifest("Deployment", "shop-worker")
    document["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize(("pod", "container"), OURS, ids=name_of)
def test_it_satisfies_the_restricted_pod_security_standard(pod: dict[str, Any], container: dict[str, Any]) -> None:
    context = {**pod.get("securityContext", {}), **container["securityContext"]}
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize(("pod", "container"), OURS, ids=name_of)
def test_what_listens_is_probed_there(pod: dict[str, Any], container: dict[str, Any]) -> None:
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    listen = parse(container["args"]).get("listen")
    if listen is None:
        assert (probes, container.get("ports", [])) == ({}, [])
        return
    host, port = parse_address(listen)
    assert [(each["name"], each["containerPort"]) for each in container["ports"]] == [("metrics", port)]
    assert host == "0.0.0.0", "the kubelet asks from outside of the Pod"
    wanted = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert probes == {name: {"path": wanted[name], "port": "metrics"} for name in probes}
    assert "livenessProbe" in probes
    is_sidecar = container not in pod["containers"]  # whose readiness would be that of the application
    assert ("readinessProbe" in probes) != is_sidecar


@pytest.mark.parametrize(("pod", "container"), OURS, ids=name_of)
def test_it_has_longer_to_stop_than_it_takes(pod: dict[str, Any], container: dict[str, Any], shop: Shop) -> None:
    assert pod.get("terminationGracePeriodSeconds", 30) > shop.seconds_to_stop(container["args"])


def test_what_selects_pods_selects_those_of_its_deployment() -> None:
    for document in manifests():
        if document["kind"] in ("Deployment", "PodDisruptionBudget"):
            deployment = manifest("Deployment", document["metadata"]["name"])
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("name", ["shop-worker", "outbox-relay"])
def test_it_is_scaled_by_one_hand_and_survives_a_drained_node(name: str) -> None:
    deployment, scaler = manifest("Deployment", name), manifest("HorizontalPodAutoscaler", name)
    assert "replicas" not in deployment["spec"], "kubectl apply would set back what the autoscaler has set"
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    budget = manifest("PodDisruptionBudget", name)["spec"]["maxUnavailable"]
    assert budget < scaler["spec"]["minReplicas"]


def test_workers_are_scaled_before_they_hold_all_that_they_may(shop: Shop) -> None:
    (metric,) = manifest("HorizontalPodAutoscaler", "shop-worker")["spec"]["metrics"]
    target = float(metric["pods"]["target"]["averageValue"])
    assert shop.concurrency < target < shop.prefetch


def test_secrets_are_no_arguments() -> None:
    for document in manifests():
        for container in containers_of(pod_of(document) or {"containers": []}):
            assert not any("://" in word for word in container.get("args", ()))
            assert all("valueFrom" in variable for variable in container.get("env", ()))


# -- what the autoscalers ask for


def test_autoscalers_ask_for_metrics_that_the_adapter_gives_them() -> None:
    rules = adapter_rules()
    asked = [
        (metric["type"], metric[metric["type"].lower()]["metric"]["name"])
        for document in manifests()
        if document["kind"] == "HorizontalPodAutoscaler"
        for metric in document["spec"]["metrics"]
    ]
    given = [("Pods", rule["name"]["as"]) for rule in rules["custom"]]
    given += [("External", rule["name"]["as"]) for rule in rules["external"]]
    assert sorted(asked) == sorted(given)


def test_the_adapter_queries_metrics_that_we_expose_as_gauges() -> None:
    known = exposed()
    for rule in (rule for rules in adapter_rules().values() if isinstance(rules, list) for rule in rules):
        names = re.findall(r"effectonce_\w+", " ".join((rule["seriesQuery"], rule["metricsQuery"], rule["name"]["as"])))
        assert len(set(names)) == 1
        assert known[names[0]][0] == "gauge"


def adapter_rules() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/adapter-values.yaml").read_text())["rules"]
    return rules
