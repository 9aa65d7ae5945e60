"""deploy/helm/gpuward, rendered by Helm's own library. `make test-helm` installs it.

The base of kustomize is what the chart is compared with, so both stay one installation.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import helm_python
import kubernetes_validate
import pytest
import yaml

from schemas.variable_names import VARIABLES
from schemas.version import __version__
from support.pages import DOCS, ROOT, fences

CHART: Final = ROOT / "deploy" / "helm" / "gpuward"
BASE: Final = ROOT / "deploy" / "kubernetes"
VERSION: Final = "1.37"  # the newest that the schemas of Kubernetes know
DAEMONS: Final = ("controller", "gateway", "agent")
# Kinds of others, whose schemas no package ships.
CUSTOM: Final = {"HTTPRoute", "ServiceMonitor", "PrometheusRule"}
ALL: Final = {
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"GPUWARD_KEEP_EVENTS_DAYS": "60"},
    "gateway": {"trustedProxies": ["10.1.0.0/16", "10.2.0.0/16"]},
    "tls": {"secretName": "gpuward-tls", "ca": True},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "public", "annotations": {"a.example/b": "c"}},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["gpuward.example"]},
    "agent": {
        "models": [
            {"name": "nfs", "mountPath": "/models", "claimName": "models"},
            {"name": "local", "mountPath": "/srv/models", "hostPath": "/srv/models"},
        ],
        "shmSize": "64Gi",
        "seccompProfile": "Unconfined",
        "settings": {"GPUWARD_AGENT_CACHE_LIMIT": "500GiB"},
    },
    "priorityClass": {"create": True},
    "networkPolicy": {"enabled": True, "gatewayFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "rules": {"enabled": True},
        "boards": {"enabled": True},
    },
}
Json = dict[str, Any]


@cache
def rendered(values: str = "{}", name: str = "gpuward") -> str:
    with helm_python.Chart.load(CHART) as chart:
        given = json.loads(values)
        chart.validate_schema(given)
        files = chart.render(given, name=name, namespace="models")
    return json.dumps(files)


def objects(values: Json | None = None, name: str = "gpuward") -> list[Json]:
    files = json.loads(rendered(json.dumps(values or {}), name))
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one is not None]


def named(found: list[Json]) -> dict[tuple[str, str], Json]:
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pod(found: list[Json], daemon: str) -> Json:
    kind = "DaemonSet" if daemon == "agent" else "Deployment"
    return dict(named(found)[kind, f"gpuward-{daemon}"]["spec"]["template"]["spec"])


def container(found: list[Json], daemon: str) -> Json:
    (only,) = pod(found, daemon)["containers"]
    return dict(only)


def environment(found: list[Json], daemon: str) -> dict[str, str | None]:
    return {one["name"]: one.get("value") for one in container(found, daemon)["env"]}


def base() -> Iterator[Json]:
    for name in yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]:
        yield from yaml.safe_load_all((BASE / name).read_text())


def without_labels(value: Any) -> Any:
    """An object without labels and selectors, which name the release in the chart, and without what is a default."""
    if isinstance(value, list):
        return [without_labels(one) for one in value]
    if not isinstance(value, dict):
        return value
    left_out = {"labels", "matchLabels", "selector", "imagePullPolicy"}
    if value.get("scheme") == "HTTP":
        left_out.add("scheme")
    return {key: without_labels(one) for key, one in value.items() if key not in left_out}


def test_helm_finds_nothing_to_say() -> None:
    for values in ({}, ALL):
        report = helm_python.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert {one["error"] for one in report["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("values", [{}, ALL, {"agent": {"enabled": False}}], ids=["default", "all", "no-agents"])
def test_kubernetes_accepts_each_object(values: Json) -> None:
    found = objects(values)
    for one in found:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, VERSION, strict=True)
    assert {one["kind"] for one in found if one["kind"] in CUSTOM} == (CUSTOM if values is ALL else set())
    assert len(named(found)) == len(found), "no two have one name"
    assert [one for one in found if one["kind"] in ("Role", "ClusterRole", "RoleBinding", "Secret")] == []


def test_the_defaults_are_the_base() -> None:
    expected = named([one for one in base() if one["kind"] != "Namespace"])
    found = named(objects())
    assert found.keys() == expected.keys()
    (agent,) = found["DaemonSet", "gpuward-agent"]["spec"]["template"]["spec"]["containers"]
    assert agent["securityContext"].pop("seccompProfile") == {"type": "RuntimeDefault"}, "one value more than the base"
    for key, one in found.items():
        if key[0] == "Service":
            one["spec"].setdefault("type", "ClusterIP")
            expected[key]["spec"].setdefault("type", "ClusterIP")
        image = r'"image": "([^":]+):[^"]+"'
        mine = re.sub(image, r'"image": "\1"', json.dumps(without_labels(one), sort_keys=True))
        assert json.loads(mine) == without_labels(expected[key]), key


def test_selectors_find_the_pods_of_their_release_alone() -> None:
    found = objects(ALL, "other")
    pods = {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]
        for one in found
        if "template" in one.get("spec", {})
    }
    assert set(pods) == set(DAEMONS)
    for one in found:
        spec = one.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector", {}))
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert wanted["app.kubernetes.io/instance"] == "other"
            assert wanted.items() <= pods[wanted["app.kubernetes.io/component"]]["metadata"]["labels"].items()
    assert "http://other-controller:8420" in json.dumps(found)
    assert "https://other:8420" in json.dumps(pods["agent"])
    assert '"gpuward-controller' not in json.dumps(found)


def test_images_have_the_version_or_the_tag_that_is_given() -> None:
    assert container(objects(), "agent")["image"] == f"gpuward-agent:{__version__}"
    given = objects({"image": {"repository": "registry.example/gpuward", "tag": "v1"}})
    assert container(given, "controller")["image"] == "registry.example/gpuward:v1"
    assert container(given, "gateway")["image"] == "registry.example/gpuward:v1"


def test_the_chart_has_the_version_of_gpuward() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_no_container_is_privileged() -> None:
    for daemon in DAEMONS:
        security = container(objects(ALL), daemon)["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in security
    assert container(objects(ALL), "agent")["securityContext"]["seccompProfile"] == {"type": "Unconfined"}


def test_tls_reaches_probes_agents_and_the_monitor_and_no_agent_gets_the_key() -> None:
    found = objects(ALL)
    gateway, agent = container(found, "gateway"), pod(found, "agent")
    variables = environment(found, "gateway")
    mounts = {one["mountPath"]: one["name"] for one in gateway["volumeMounts"]}
    volumes = {one["name"]: one for one in pod(found, "gateway")["volumes"]}
    for name, key in (("GPUWARD_TLS_CERT", "tls.crt"), ("GPUWARD_TLS_KEY", "tls.key")):
        folder, _, file = str(variables[name]).rpartition("/")
        assert (volumes[mounts[folder]]["secret"]["secretName"], file) == ("gpuward-tls", key)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert gateway[probe]["httpGet"]["scheme"] == "HTTPS"
    assert environment(found, "agent")["GPUWARD_AGENT_CONTROLLER_URL"] == "https://gpuward:8420"
    assert environment(found, "agent")["GPUWARD_AGENT_CA"] == "/etc/gpuward/ca/ca.crt"
    (secret,) = (one["secret"] for one in agent["volumes"] if one.get("secret", {}).get("secretName") == "gpuward-tls")
    assert [one["key"] for one in secret["items"]] == ["ca.crt"]
    (endpoint,) = named(found)["ServiceMonitor", "gpuward"]["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["ca"]["secret"]["name"]) == ("https", "gpuward-tls")
    plain = objects({"tls": {"secretName": "gpuward-tls"}})
    assert "GPUWARD_AGENT_CA" not in environment(plain, "agent"), "systems know a public authority"


def test_the_public_address_leads_to_the_gateways() -> None:
    found = named(objects(ALL))
    (rule,) = found["Ingress", "gpuward"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "gpuward", "port": {"name": "http"}}
    assert found["Ingress", "gpuward"]["spec"]["tls"] == [{"hosts": ["gpuward.example"], "secretName": "public"}]
    (rule,) = found["HTTPRoute", "gpuward"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "gpuward", "port": 8420}]
    assert environment(objects(ALL), "gateway")["GPUWARD_TRUSTED_PROXY"] == "10.1.0.0/16,10.2.0.0/16"


def test_gateways_alone_reach_controllers() -> None:
    found = named(objects(ALL))
    (rule,) = found["NetworkPolicy", "gpuward-controller"]["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    (rule,) = found["NetworkPolicy", "gpuward-gateway"]["spec"]["ingress"]
    assert rule["from"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    (rule,) = named(objects({"networkPolicy": {"enabled": True}}))["NetworkPolicy", "gpuward-gateway"]["spec"][
        "ingress"
    ]
    assert "from" not in rule, "all may reach gateways"


def test_models_are_read_only_from_a_claim_or_the_node() -> None:
    found = objects(ALL)
    mounts = {one["mountPath"]: one for one in container(found, "agent")["volumeMounts"]}
    volumes = {one["name"]: one for one in pod(found, "agent")["volumes"]}
    assert mounts["/models"]["readOnly"] is mounts["/srv/models"]["readOnly"] is True
    assert volumes[mounts["/models"]["name"]]["persistentVolumeClaim"]["claimName"] == "models"
    assert volumes[mounts["/srv/models"]["name"]]["hostPath"]["path"] == "/srv/models"
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}


def test_each_pod_has_the_priority_class_that_is_made_or_named() -> None:
    made = objects({"priorityClass": {"create": True}})
    assert named(made)["PriorityClass", "gpuward.models"]["value"] == 1_000_000
    own = objects({"priorityClass": {"name": "mine"}})
    assert [one for one in own if one["kind"] == "PriorityClass"] == []
    for daemon in DAEMONS:
        assert pod(made, daemon)["priorityClassName"] == "gpuward.models", "a class belongs to no namespace"
        assert pod(own, daemon)["priorityClassName"] == "mine"
        assert "priorityClassName" not in pod(objects(), daemon)


def test_rules_and_boards_are_those_of_the_sources() -> None:
    found = named(objects(ALL))
    rules = yaml.safe_load((ROOT / "deploy/prometheus/gpuward-rules.yaml").read_text())
    assert found["PrometheusRule", "gpuward"]["spec"] == rules
    boards = found["ConfigMap", "gpuward-boards"]
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        file.name: json.loads(file.read_text()) for file in (ROOT / "deploy" / "grafana").glob("*.json")
    }


def test_variables_are_gpuwards_and_the_given_ones_arrive() -> None:
    found = objects(ALL)
    for daemon in DAEMONS:
        names = set(environment(found, daemon)) - {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
        assert names <= VARIABLES
    assert environment(found, "controller")["GPUWARD_KEEP_EVENTS_DAYS"] == "60"
    assert environment(found, "agent")["GPUWARD_AGENT_CACHE_LIMIT"] == "500GiB"


@pytest.mark.parametrize("values", [
    {"replicas": 3},
    {"controller": {"replicas": "three"}},
    {"agent": {"models": [{"name": "a", "mountPath": "/a"}]}},
    {"agent": {"models": [{"name": "a", "mountPath": "/a", "claimName": "a", "hostPath": "/a"}]}},
    {"agent": {"shmSize": "much"}},
    {"settings": {"HOME": "/"}},
    {"nameOverride": "a.b"},
    {"nameOverride": "1a"},
    {"httpRoute": {"enabled": True}},
    {"secrets": {"database": ""}},
], ids=json.dumps)  # fmt: skip
def test_values_that_are_not_valid_are_refused(values: Json) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        objects(values)


@pytest.mark.parametrize("name", ["a.b", "1a"])
def test_a_release_whose_name_no_service_can_have_needs_another_base_name(name: str) -> None:
    with pytest.raises(helm_python.HelmError, match="nameOverride"):
        objects(name=name)
    assert ("Service", "gpus") in named(objects({"nameOverride": "gpus"}, name))


def test_settings_that_the_chart_sets_are_refused() -> None:
    chart = {key: value for key, value in ALL.items() if key != "settings"}
    found = objects({**chart, "agent": {**ALL["agent"], "settings": {}}})
    servers = environment(found, "controller") | environment(found, "gateway")
    agents = {name: value for name, value in environment(found, "agent").items() if name.startswith("GPUWARD_")}
    for name in servers:
        with pytest.raises(helm_python.HelmValuesError):
            objects({"settings": {name: "1"}})
    for name in agents:
        with pytest.raises(helm_python.HelmValuesError):
            objects({"agent": {"settings": {name: "1"}}})
    assert len(servers) >= 5
    assert len(agents) >= 10


def test_each_value_has_a_default_and_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(part: Json, given: Json, where: str) -> None:
        if "properties" in part:
            assert part["properties"].keys() - {"global"} == given.keys(), where
            for name, one in given.items():
                compare(part["properties"][name], one, f"{where}.{name}")

    compare(schema, values, "values")


def test_the_notes_name_the_secrets_that_pods_wait_for() -> None:
    values = {"secrets": {"database": "db", "secretsKey": "sk", "proxyKey": "pk", "join": "jt"}}
    files = json.loads(rendered(json.dumps(values)))
    (notes,) = (text for path, text in files.items() if path.endswith("NOTES.txt"))
    assert set(re.findall(r"create secret generic (\S+)", notes)) == {"db", "sk", "pk", "jt", "gpuward-admin-key"}
    assert "--namespace=models" in notes


def test_values_of_the_page_are_valid() -> None:
    shown = [
        yaml.safe_load(fence.text) for fence in fences(DOCS / "kubernetes.md", "yaml") if "kind:" not in fence.text
    ]
    assert shown
    for values in shown:
        for one in objects(values):
            if one["kind"] not in CUSTOM:
                kubernetes_validate.validate(one, VERSION, strict=True)
