"""Which deployments may use a secret."""

import pytest

from controller.domain.access.secret_scopes import ALL_DEPLOYMENTS, SecretScope


@pytest.mark.parametrize(("globs", "deployment", "covered"), [
    ((), "chat", True), (("chat",), "chat", True), (("chat",), "chat-2", False), (("team-a-*",), "team-a-chat", True),
    (("team-a-*",), "team-b-chat", False), (("x", "c*t"), "chat", True), (("chat?",), "chat", False),
])  # fmt: skip
def test_globs(globs: tuple[str, ...], deployment: str, covered: bool) -> None:
    scope = SecretScope(globs)
    assert scope.covers(deployment) is covered
    assert (scope.refusal("hf", deployment, "operator") == "") is covered


def test_a_refusal_names_the_secret_its_scope_and_the_way_out() -> None:
    text = SecretScope(("team-a-*",)).refusal("hf", "chat", "admin")
    assert "'hf' is for deployments named team-a-*" in text
    assert "gpuward secret scope hf" in text


@pytest.mark.parametrize(("globs", "allowed"), [((), True), (("*",), True), (("a", "*"), True), (("team-a-*",), False)])
def test_what_is_about_any_deployment_needs_a_secret_for_all(globs: tuple[str, ...], *, allowed: bool) -> None:
    text = SecretScope(globs).refusal_for_all("hf", "admin")
    assert (text == "") is allowed
    assert allowed or "gpuward secret scope hf --for all" in text
    assert "role admin" in SecretScope(admins_only=True).refusal_for_all("hf", "operator")


def test_only_administrators_write_what_is_for_them() -> None:
    scope = SecretScope(admins_only=True)
    assert "role admin" in scope.refusal("hf", "chat", "operator")
    assert scope.refusal("hf", "chat", "admin") == "", "an administrator writes it"
    assert scope.refusal("hf", "chat", "") == "", "what is written is started"
    assert ALL_DEPLOYMENTS.refusal("hf", "chat", "operator") == ""
