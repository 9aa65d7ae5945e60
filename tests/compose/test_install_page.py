"""docs/install.md, typed line by line as root, on hosts that have a release and nothing else of Gpuward.

A host is a container in which systemd is the first process, so the units run as they stand. It lacks `ssh` and `sudo`:
a line with them is typed on the other host itself. It lacks GPUs, so its agent simulates one.
"""

import json
import re
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.docker.compose import PYTHON_BASE, Compose
from support.docker.hub import Hub
from support.docker.released import Release
from support.docker.typed_host import Host
from support.pages import DOCS, Fence, fences

pytestmark = pytest.mark.timeout(900)
PAGE = DOCS / "install.md"
TYPED = "make test-compose types it "
MACHINE, CONTROLLER, GPU_HOST = "on a new machine", "on the controller's host", "on gpu-3"
DOCKER, PULLED = "with Docker", "with an image in a registry"
# Lines that are not typed, and why.
LEFT = {
    "gpuward run hf:Qwen/Qwen3-0.6B --name qwen": "needs a real model; tests/system/cli/test_run_model.py has a hub",
    "python3 -m venv /opt/vllm": "likewise: it fetches vLLM from an index",
    "/opt/vllm/bin/pip install vllm": "likewise",
    "ln -sf -t /usr/local/bin /opt/vllm/bin/vllm": "likewise",
    "head -c 32 /dev/urandom | base64 | install -D -m 600 --owner=gpuward /dev/stdin /etc/gpuward/secrets.key": (
        "for a database of one's own; the embedded one makes its key"
    ),
    "systemctl stop gpuward-controller": "needs a host that an earlier version has installed",
    "systemctl enable --now gpuward-gateway.socket gpuward-controller gpuward-gateway": "likewise",
    'pipx install "$(ls /opt/release/gpuward-*.whl)[controller,agent]"': "it fetches pip and others from an index",
    'uv tool install "$(ls /opt/release/gpuward-*.whl)[controller,agent]"': "it is not in the base image",
    "mkdir gpuward": "the project of this engine has the sources of the release already",
    "cd gpuward": "likewise",
    "tar -xzf /opt/release/gpuward-*.tar.gz --strip-components=1": "likewise",
}
LIMIT_S = 60.0
LISTED = "gpuward get workers\n"
INSTANCES = "gpuward get instances -o wide\n"


def blocks() -> list[Fence]:
    return list(fences(PAGE, "sh"))


def place_of(fence: Fence) -> str | None:
    """Where a block is typed; None: nowhere."""
    assert fence.note is not None, f"{fence.where}: has no note that says where it is typed, or why not"
    return fence.note[1].removeprefix(TYPED) if fence.note[1].startswith(TYPED) else None


def typed_lines(fence: Fence) -> str:
    return "".join(line for line in fence.text.splitlines(keepends=True) if line.strip() not in LEFT)


def test_each_line_is_typed_or_listed_with_a_reason() -> None:
    for fence in blocks():
        place = place_of(fence)
        assert place in (None, MACHINE, CONTROLLER, GPU_HOST, DOCKER, PULLED), fence.where
        if place is None:
            assert [line for line in fence.text.splitlines() if line not in LEFT] == [], fence.where
    whole = "".join(fence.text for fence in blocks())
    assert [line for line in LEFT if f"{line}\n" not in whole] == [], "listed, and no longer on the page"
    assert "```\n" not in re.sub(r"```sh\n.*?```\n", "", PAGE.read_text(), flags=re.DOTALL), "a block of another kind"


@pytest.fixture(scope="module")
def hosts(compose: Compose, release: Release) -> Iterator[dict[str, Host]]:
    """The controller's host and a GPU host, which reach one another by name."""
    assert release.made[0] == 0, release.made[1]
    compose.shell("docker network create hosts")
    made = {
        CONTROLLER: Host(compose, "controller", PYTHON_BASE, network="hosts", alias="controller.example"),
        GPU_HOST: Host(compose, "gpu-3", PYTHON_BASE, network="hosts"),
    }
    try:
        for host in made.values():
            host.start()
            simulate_gpus(host)
        yield made
    finally:
        for host in made.values():
            with suppress(AssertionError):
                host.remove()


def simulate_gpus(host: Host) -> None:
    """A host of this machine has no GPUs, and an agent without any ends."""
    workers = f"{{workers: [{{name: {host.name}, gpus: [{{model: NVIDIA A100, memory: 40GiB}}]}}]}}"
    host.types(f"""
        mkdir -p /run/systemd/system/gpuward-agent.service.d
        printf '[Service]\\nEnvironment=GPUWARD_AGENT_SIMULATE=/run/gpus.yaml\\n' \\
            > /run/systemd/system/gpuward-agent.service.d/gpus.conf
        echo '{workers}' > /run/gpus.yaml
    """)


def until(host: Host, line: str, pattern: str, *, user: str = "root") -> str:
    """Types a line again until its answer has it."""
    deadline = time.monotonic() + LIMIT_S
    while not re.search(pattern, said := host.types(line, user=user)):
        assert time.monotonic() < deadline, f"{line} never says {pattern}\n{said}\n{host.journal()}"
        time.sleep(0.5)
    return said


def engines(host: Host) -> dict[str, str]:
    """Pid and uid of each engine that runs there, by its line of argv."""
    said = host.types("ps -eo pid,uid,args --no-headers | grep '[s]imulated_engine' || true")
    return {line.split()[0]: line.split()[1] for line in said.splitlines()}


def type_on_another(hosts: dict[str, Host], line: str) -> str:
    """`A | ssh HOST sudo B`: A is typed here, and B there."""
    made, _, rest = line.partition(" | ssh gpu-3 sudo ")
    return hosts[GPU_HOST].types(rest, given=hosts[CONTROLLER].types(made))


def test_two_hosts_with_systemd(hosts: dict[str, Host]) -> None:
    here, there = hosts[CONTROLLER], hosts[GPU_HOST]
    seen = list[str]()
    for fence in blocks():
        place = place_of(fence)
        if place not in hosts:
            continue
        text = typed_lines(fence)
        seen.append(text)
        if "| ssh " in text:
            type_on_another(hosts, text)
            assert "ok       isolation" in here.types("gpuward doctor || true"), "beside a controller, too"
        elif text == LISTED and seen.count(LISTED) == 2:
            assert len(re.findall(r"\bready\b", until(here, text, r"(?s)\bready\b.*\bready\b"))) == 2
        elif "drain" in text:
            here.types(text)
            until(here, INSTANCES, r"(?s)\A(?!.*gpu-3).*running")
        elif "restart gpuward-controller\n" in text:
            before = {host.name: engines(host) for host in hosts.values()}
            here.types(text)
            assert sum(len(found) for found in before.values()) == 2
            assert all(60706 <= int(uid) <= 61183 for found in before.values() for uid in found.values())
            until(here, LISTED, r"(?s)\bready\b.*\bready\b")
            assert {host.name: engines(host) for host in hosts.values()} == before, "engines run on"
        elif "assets --force" in text:
            before = engines(there)
            there.types(text)
            until(here, LISTED, r"(?s)\bready\b.*\bready\b")
            assert engines(there) == before, "the new agent adopts them"
        else:
            hosts[place].types(text)
    assert seen.count(LISTED) == 2


def test_nothing_of_it_is_left(hosts: dict[str, Host]) -> None:
    """After the page's last lines, which the test before has typed."""
    for host in hosts.values():
        find = "find / -xdev -iname '*gpuward*' -not -path '/opt/release*' -not -path '/proc/*'"
        assert host.types(find) == ""
        assert host.types("ps -eo args --no-headers | grep '[g]puward' || true") == ""
        assert host.types("systemctl --failed --no-legend --plain | grep gpuward || true") == ""


def test_one_machine(compose: Compose) -> None:
    (fence,) = (one for one in blocks() if place_of(one) == MACHINE)
    *first, up = fence.text.splitlines()
    with Host(compose, "machine", PYTHON_BASE) as host:
        host.types("useradd --create-home ada")
        host.types("\n".join(first), user="ada")
        host.types(f"{up} > up.log 2>&1 & echo $! > up.pid", user="ada")
        client = "export GPUWARD_DATA_DIR=~/gpuward-data PATH=~/gpuward/bin:$PATH\n"
        until(host, f"{client}gpuward get workers 2>&1 || tail -40 ~/up.log", r"\bready\b", user="ada")
        printed = host.types("cat up.log", user="ada")
        assert all(command in printed for command in ("gpuward apply ", "gpuward ps", "curl ")), printed
        host.types("kill -INT $(cat up.pid); timeout 60 tail --pid=$(cat up.pid) -f /dev/null", user="ada")
        assert host.types("ps -eo args --no-headers | grep '[g]puward/bin' || true") == ""


def test_docker_compose(compose: Compose) -> None:
    (fence,) = (one for one in blocks() if place_of(one) == DOCKER)
    compose.shell(typed_lines(fence))
    both_hosts_are_ready(compose, fence.text.splitlines()[-1])


def both_hosts_are_ready(compose: Compose, line: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(re.findall(r"^gpu-\d +ready\b", said := compose.shell(line), re.MULTILINE)) != 2:
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def test_the_compose_file_of_the_wheel_alone(compose: Compose, release: Release, hub: Hub, tmp_path: Path) -> None:
    """A machine that can pull the image has nothing else. The test before has built it."""
    (fence,) = (one for one in blocks() if place_of(one) == PULLED)
    (page,) = re.findall(r"^export GPUWARD_IMAGE=(\S+)$", fence.text, re.MULTILINE)
    image = page.replace("registry.example", hub.address)
    compose.shell(f"docker tag gpuward {image}\ndocker push --quiet {image}\ndocker rmi {image}")
    (wheel,) = release.folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (tmp_path / "docker-compose.yml").write_bytes(archive.read("cli/assets/docker-compose.yml"))
    here = f"cd {tmp_path}\nexport GPUWARD_PORT=8424\n"  # the project of the other tests has the port of the page
    *lines, listed = fence.text.replace(page, image).splitlines()
    exported, _ = lines
    try:
        compose.shell(here + "\n".join(lines))
        both_hosts_are_ready(compose, f"{here}{exported}\n{listed}")
        used = compose.shell(f"{here}{exported}\ndocker compose images --format json")
        assert {one["Tag"] for one in json.loads(used)} == {image.rpartition(":")[2], "18"}, "nothing was built"
    finally:
        compose.shell(f"{here}{exported}\ndocker compose down --volumes --timeout 20")
