"""The product on this host: a controller with its database, an agent, and calls of users."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil

Json = dict[str, Any]
API_LIMIT_S: Final = 10.0
ANSWER_LIMIT_S: Final = 60.0
READY_S: Final = 60.0
_POLL_S: Final = 0.1
_END_S: Final = 15.0
SAMPLE_S: Final = 2.0
WORKER: Final = "gpu-host"
MESSAGES: Final = [{"role": "user", "content": "Say something."}]


class ProductError(Exception):
    """An unexpected answer, which the message has."""


class Product:
    """Its files are in `folder`, which the database's account must be able to enter, and its logs in `logs`.

    `env` is of its processes. `engines`: folder with model servers, first in the search path of the agent.
    """

    def __init__(self, folder: Path, logs: Path, env: Mapping[str, str], engines: Path | None) -> None:
        self.folder = folder
        self._logs = logs
        self._env = dict(env)
        self._engines = engines
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._url = self._key = ""

    # Processes

    def _start(self, name: str, *argv: str, **env: str) -> None:
        with (self._logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", "cli", *argv], env=self._env | env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def start_controller(self) -> float:
        """Starts it and waits until it leads; returns the seconds it took."""
        began = time.monotonic()
        folder = self.folder / "controller"
        self._start("controller", "controller", "--data-dir", str(folder), "--port", "0",
                    GPUWARD_SAMPLE_EVERY_S=f"{SAMPLE_S:g}")  # fmt: skip
        self._wait("controller", lambda: self._leads(folder / "client.env"), "the controller leads")
        return time.monotonic() - began

    def _leads(self, file: Path) -> bool:
        if not file.exists():
            return False
        values = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
        self._url, self._key = values["GPUWARD_URL"], values.get("GPUWARD_API_KEY", "")
        with suppress(ProductError, OSError):
            return bool(self._key and self.get("/leader")["leading"])
        return False

    def start_agent(self) -> float:
        """Starts it and waits until its worker is ready; returns the seconds. Its engines outlive it."""
        began = time.monotonic()
        folder = self.folder / "agent"
        argv = ["agent", "--controller", self._url, "--name", WORKER, "--data-dir", str(folder), "--on-exit", "keep"]
        if not folder.exists():
            argv += ["--join-token", self.call("POST", "/tokens", {})["token"]]
        path = self._env.get("PATH", os.defpath)
        more = {"PATH": f"{self._engines}{os.pathsep}{path}"} if self._engines else {}
        self._start("agent", *argv, GPUWARD_AGENT_PROXY_HOST="127.0.0.1", **more)
        self._wait("agent", lambda: self.connected, "the worker is ready")
        return time.monotonic() - began

    @property
    def connected(self) -> bool:
        with suppress(ProductError, OSError):
            status = self.get(f"/workers/{WORKER}")["status"]
            return bool(status["connected"] and status["phase"] == "ready")
        return False

    def _wait(self, name: str, poll: Callable[[], object], what: str) -> None:
        end = time.monotonic() + READY_S
        while not poll():
            if self._processes[name].poll() is not None:
                raise ProductError(f"the {name} ended: {self.log(name)}")
            if time.monotonic() > end:
                raise ProductError(f"not within {READY_S:g} s: {what}\n{self.log(name)}")
            time.sleep(_POLL_S)

    def end(self, name: str, number: signal.Signals) -> float:
        began = time.monotonic()
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S)
            raise ProductError(f"the {name} did not end within {_END_S:g} s of {number.name}") from None
        return time.monotonic() - began

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._processes[name].pid)

    def log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text(errors="replace")[-3000:]

    def engines(self, deployment: str | None = None) -> dict[int, psutil.Process]:
        """The processes of engines by pid: of one deployment, or all."""
        engines = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                env = process.environ()
                ours = env.get("GPUWARD_AGENT_DIR", "").startswith(str(self.folder))
                named = deployment is None or env.get("GPUWARD_INSTANCE", "").startswith(f"{deployment}-")
                if ours and named and process.status() != psutil.STATUS_ZOMBIE:
                    engines[process.pid] = process
        return engines

    # Calls

    def _open(self, method: str, path: str, body: Any, limit_s: float) -> Any:
        request = urllib.request.Request(  # noqa: S310 - the controller's own URL
            self._url + path, method=method, data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )  # fmt: skip
        try:
            return urllib.request.urlopen(request, timeout=limit_s)  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")[:1000]
            raise ProductError(f"{method} {path}: {error.code} {text}") from error

    def call(self, method: str, path: str, body: Any = None) -> Any:
        with self._open(method, f"/api/v1{path}", body, API_LIMIT_S) as answer:
            return json.loads(answer.read() or b"null")

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def apply(self, name: str, **spec: Any) -> None:
        self.call("PUT", f"/deployments/{name}", spec)

    def instance(self, deployment: str) -> Json | None:
        """The status of the deployment's only instance, with its name; None without an instance."""
        for view in self.get("/instances?limit=1000")["items"]:
            if view["spec"]["deployment"] == deployment:
                return {"name": view["name"], **view["status"]}
        return None

    def gpu(self, uuid: str) -> Json:
        return dict(self.get(f"/gpus/{uuid}")["status"])

    def delete(self, name: str) -> None:
        with suppress(ProductError):
            self.call("DELETE", f"/deployments/{name}")

    def ask(self, model: str, tokens: int = 16, limit_s: float = ANSWER_LIMIT_S) -> Json:
        body = {"model": model, "messages": MESSAGES, "max_tokens": tokens}
        with self._open("POST", "/v1/chat/completions", body, limit_s) as answer:
            return dict(json.loads(answer.read()))

    def stream(self, model: str, tokens: int = 16, limit_s: float = ANSWER_LIMIT_S) -> Iterator[str]:
        body = {"model": model, "messages": MESSAGES, "max_tokens": tokens, "stream": True}
        with self._open("POST", "/v1/chat/completions", body, limit_s) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield line[6:].decode(errors="replace").strip()

    def answers(self, model: str) -> bool:
        with suppress(ProductError, OSError, ValueError):
            return bool(self.ask(model, 2, 20.0)["choices"])
        return False

    def close(self) -> None:
        """Ends agent and controller, and the engines, which outlive the agent."""
        for name in ("agent", "controller"):
            with suppress(KeyError, ProductError):
                self.end(name, signal.SIGTERM)
        for engine in self.engines().values():
            with suppress(psutil.Error):
                engine.kill()
