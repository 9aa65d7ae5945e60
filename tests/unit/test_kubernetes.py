"""deploy/kubernetes: what Kubernetes and Gpuward themselves accept."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from agent.settings import AgentSettings
from cli.app import imported
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
ROOT: Final = FOLDER.parents[1]
VERSION: Final = "1.37"  # the newest that the schemas know
SETTINGS: Final = {"controller": ControllerSettings, "gateway": GatewaySettings, "agent": AgentSettings}
Json = dict[str, Any]


def objects() -> Iterator[Json]:
    for name in kustomization()["resources"]:
        yield from yaml.safe_load_all((FOLDER / name).read_text())


def kustomization() -> Json:
    return dict(yaml.safe_load((FOLDER / "kustomization.yaml").read_text()))


def workloads() -> dict[str, Json]:
    """Each daemon's pod."""
    return {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"]
        for one in objects()
        if "template" in one.get("spec", {})
    }


def container(daemon: str) -> Json:
    (only,) = workloads()[daemon]["containers"]
    return dict(only)


def test_every_file_is_named_and_every_object_is_valid() -> None:
    assert {"kustomization.yaml", *kustomization()["resources"]} == {file.name for file in FOLDER.glob("*.yaml")}
    for one in objects():
        kubernetes_validate.validate(one, VERSION, strict=True)
        assert "namespace" not in one["metadata"], "the kustomization says it"


def test_an_invalid_object_is_found() -> None:
    (broken,) = (one for one in objects() if one["kind"] == "DaemonSet")
    broken["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


@pytest.mark.parametrize("daemon", SETTINGS)
def test_each_daemon_knows_its_arguments_and_variables(daemon: str) -> None:
    arguments = container(daemon)["args"]
    assert arguments[0] == daemon
    command = imported(daemon)
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    assert {one for one in arguments if one.startswith("--")} <= known
    settings = SETTINGS[daemon]
    prefix = settings.model_config["env_prefix"]
    names = {entry["name"].removeprefix(prefix).lower() for entry in container(daemon)["env"]}
    theirs = {"nvidia_visible_devices", "nvidia_driver_capabilities"}
    assert names - theirs <= set(settings.model_fields)


def test_images_are_those_that_the_kustomization_tags() -> None:
    used = {container(daemon)["image"] for daemon in SETTINGS}
    assert used == {image["name"] for image in kustomization()["images"]}


def test_selectors_find_their_pods_and_ports() -> None:
    ports = {daemon: {port["name"] for port in container(daemon)["ports"]} for daemon in SETTINGS}
    for one in objects():
        if one["kind"] == "Service":
            daemon = one["spec"]["selector"]["app.kubernetes.io/component"]
            assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports[daemon]
        elif one["kind"] == "PodDisruptionBudget":
            assert one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] in SETTINGS
    services = {one["metadata"]["name"] for one in objects() if one["kind"] == "Service"}
    (controller,) = (one for one in container("gateway")["args"] if one.startswith("http://"))
    assert controller.removeprefix("http://").partition(":")[0] in services
    variables = {one["name"]: one.get("value") for one in container("agent")["env"]}
    assert variables["GPUWARD_AGENT_CONTROLLER_URL"] == "http://gpuward:8420"
    assert "gpuward" in services


def test_only_the_agent_has_more_rights_than_a_stranger() -> None:
    for daemon, pod in workloads().items():
        security = container(daemon)["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert "privileged" not in security
        assert pod["automountServiceAccountToken"] is False
        if daemon != "agent":
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] == 8420
            assert security["readOnlyRootFilesystem"] is True
            assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod)
    assert "--uid 8420" in (ROOT / "Dockerfile").read_text()


def test_the_agent_sees_the_processes_of_its_host() -> None:
    """NVML names them by the host's pids, and gateways find the agent at the node's address."""
    pod, mounts = workloads()["agent"], {one["mountPath"] for one in container("agent")["volumeMounts"]}
    assert (pod["hostPID"], pod["hostNetwork"], pod["dnsPolicy"]) == (True, True, "ClusterFirstWithHostNet")
    variables = {one["name"]: one.get("value") for one in container("agent")["env"]}
    (port,) = container("agent")["ports"]
    assert variables["GPUWARD_AGENT_PROXY_PORT"] == str(port["containerPort"]) == str(port["hostPort"])
    for name in ("GPUWARD_AGENT_DATA_DIR", "GPUWARD_AGENT_CACHE_DIR"):
        assert variables[name] in mounts, "it outlives the pod"


def test_each_container_has_bounds_of_its_own() -> None:
    for daemon in SETTINGS:
        resources = container(daemon)["resources"]
        assert set(resources["requests"]) == {"cpu", "memory"}
        # Engines are processes of the agent's container: a limit there would be one on models.
        assert set(resources.get("limits", ())) == ({"memory"} if daemon != "agent" else set())
        for volume in workloads()[daemon]["volumes"]:
            if "emptyDir" in volume and volume["emptyDir"].get("medium") != "Memory":
                assert "sizeLimit" in volume["emptyDir"]


def test_secrets_come_from_objects_and_never_stand_in_a_manifest() -> None:
    for daemon in SETTINGS:
        for one in container(daemon)["env"]:
            secret = re.search(r"(SECRET|TOKEN|API_KEY|DATABASE_URL|PASSWORD)$", one["name"])
            assert not secret or "secretKeyRef" in one.get("valueFrom", {}), one["name"]
        assert workloads()[daemon]["enableServiceLinks"] is False, "the Service gpuward would set GPUWARD_PORT"
    for daemon in ("controller", "gateway"):
        named = {
            one["secretRef"]["name"]: one["secretRef"].get("optional", False) for one in container(daemon)["envFrom"]
        }
        assert named == {"gpuward-database": False, "gpuward-settings": True}
    mounted = {"agent": "gpuward-join", "controller": "gpuward-secrets-key", "gateway": "gpuward-proxy-key"}
    for daemon, name in mounted.items():
        secrets = [one["secret"] for one in workloads()[daemon]["volumes"] if "secret" in one]
        assert [one["secretName"] for one in secrets] == [name]
        assert {one["defaultMode"] for one in secrets} <= {0o400}
        account = workloads()[daemon].get("securityContext", {})
        assert account.get("fsGroup") == account.get("runAsGroup"), "files of Secrets are root's"
    assert [one for one in objects() if one["kind"] == "Secret"] == []


def test_controllers_have_a_key_that_encrypts_secrets_and_gateways_have_not() -> None:
    variables = {one["name"]: one.get("value") for one in container("controller")["env"]}
    file = Path(variables["GPUWARD_SECRETS_KEY_FILE"] or "")
    (volume,) = (one["name"] for one in container("controller")["volumeMounts"] if one["mountPath"] == str(file.parent))
    (secret,) = (one["secret"] for one in workloads()["controller"]["volumes"] if one["name"] == volume)
    assert not secret.get("optional"), "a new cluster never stores secrets unencrypted"
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"create secret generic {secret['secretName']}" in page
    assert f"--from-file={file.name}=" in page


def test_each_probe_asks_a_port_that_the_container_names() -> None:
    for daemon in SETTINGS:
        ports = {port["name"] for port in container(daemon)["ports"]}
        probes = {name: one for name, one in container(daemon).items() if name.endswith("Probe")}
        assert set(probes) >= {"livenessProbe", "readinessProbe"}
        for probe in probes.values():
            assert probe["httpGet"]["port"] in ports
    assert "exclude=controller" in container("gateway")["livenessProbe"]["httpGet"]["path"], "models need no controller"


def test_streams_end_before_their_gateway_is_killed() -> None:
    assert workloads()["gateway"]["terminationGracePeriodSeconds"] > GatewaySettings.model_fields["drain"].default


def test_the_token_of_the_nodes_names_the_network_in_which_they_advertise() -> None:
    """Gateways see agents under addresses of the pods' network: a token without one lets no new node in."""
    assert "GPUWARD_AGENT_ADVERTISE" in {one["name"] for one in container("agent")["env"]}
    for file in (FOLDER / "agent.yaml", ROOT / "docs" / "kubernetes.md"):
        commands = [line for line in file.read_text().splitlines() if "join-token create" in line]
        assert commands, file
        assert all("--advertise-network" in line for line in commands), file


def test_gateways_start_before_their_key_exists() -> None:
    """An upgraded cluster has no such Secret yet: its gateways serve all the same."""
    (volume,) = (one for one in workloads()["gateway"]["volumes"] if "secret" in one)
    assert volume["secret"]["optional"]
    (mount,) = (one for one in container("gateway")["volumeMounts"] if one["name"] == volume["name"])
    env = {one["name"]: one.get("value") for one in container("gateway")["env"]}
    assert env["GPUWARD_PROXY_KEY_FILE"].startswith(mount["mountPath"] + "/")
