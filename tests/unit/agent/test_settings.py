import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent.settings import AgentSettings, host_label


def _settings(**fields: object) -> AgentSettings:
    return AgentSettings.model_validate({"controller_url": "http://c:8080/", **fields})


def test_environment_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWARD_JOIN_TOKEN", "secret-token")
    monkeypatch.setenv("GPUWARD_AGENT_DATA_DIR", "/somewhere")
    monkeypatch.setenv("GPUWARD_AGENT_ON_EXIT", "keep")
    settings = _settings()
    assert settings.controller_url == "http://c:8080"
    assert settings.join_token is not None
    assert settings.join_token.get_secret_value() == "secret-token"
    assert "secret-token" not in repr(settings)
    assert (settings.data_dir, settings.on_exit, settings.proxy_port) == (Path("/somewhere"), "keep", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("controller_url", "c:8080"),
        ("controller_url", "http://a:1,b:2"),
        ("controller_url", " , "),
        ("tls_key", "/key.pem"),
        ("proxy_tls", "maybe"),
        ("name", "Not_A_Label"),
        ("advertise", "http://h:1"),
        ("advertise", "h:0"),
        ("advertise", "h:70000"),
        ("proxy_port", -1),
        ("on_exit", "explode"),
        ("nonsense", 1),
        ("container_user", "engines"),
        ("container_user", "1:2:3"),
        ("container_user", "-1"),
        ("labels", {"zone": "a", "gpuward/gpu-model": "B200"}),
    ],
)
def test_invalid_values_name_their_field(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        _settings(**{field: value})


def test_the_token_has_one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWARD_JOIN_TOKEN_FILE", "/run/secrets/join")
    assert _settings().join_token_file == Path("/run/secrets/join")
    with pytest.raises(ValidationError, match="set one of them"):
        _settings(join_token="secret-token")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("host", "host:99"),
        ("host:7", "host:7"),
        ("10.0.0.1", "10.0.0.1:99"),
        ("[fe80::1]", "[fe80::1]:99"),
        ("[fe80::1]:7", "[fe80::1]:7"),
    ],
)
def test_advertised_address(given: str | None, expected: str | None) -> None:
    assert _settings(advertise=given).advertised(99) == expected


@pytest.mark.parametrize(
    ("hostname", "label"),
    [("gpu-1", "gpu-1"), ("GPU_Box.example.org", "gpu-box"), ("___", "worker"), ("a" * 80, "a" * 63)],
)
def test_host_names_become_labels(hostname: str, label: str) -> None:
    assert host_label(hostname) == label


@pytest.mark.parametrize(("own", "allowed"), [(0, True), (1000, True), (1001, False)])
def test_only_root_runs_containers_as_another_user(monkeypatch: pytest.MonkeyPatch, own: int, *, allowed: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: own)
    if allowed:
        assert _settings(container_user="1000:44").container_user == "1000:44"
        return
    with pytest.raises(ValidationError, match="only an agent of root"):
        _settings(container_user="1000:44")


@pytest.mark.parametrize(
    ("url", "fields", "speaks"),
    [
        ("http://127.0.0.1:1", {}, False),
        ("http://localhost:1,http://[::1]:2", {"advertise": "127.0.0.1"}, False),
        ("http://127.0.0.1:1", {"advertise": "10.0.0.1:7"}, True),
        ("http://10.0.0.1:1", {}, True),
        ("https://c.example,http://127.0.0.1:1", {}, True),
        ("http://10.0.0.1:1", {"proxy_tls": "off"}, False),
        ("http://127.0.0.1:1", {"proxy_tls": "on"}, True),
    ],
)
def test_the_proxy_speaks_tls_unless_all_is_on_this_host(url: str, fields: dict[str, object], speaks: bool) -> None:
    assert _settings(controller_url=url, **fields).speaks_tls() == speaks


def test_several_controllers() -> None:
    settings = _settings(controller_url="http://a:1/, http://b:2,http://a:1")
    assert settings.controller_urls == ("http://a:1", "http://b:2")
