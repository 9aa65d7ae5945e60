"""A manifest that was read with a secret's value redacted cannot be applied as it is."""

import pytest

from schemas.manifest.parse import ManifestError, parse_manifests, parse_policy_spec, parse_spec


@pytest.mark.parametrize(
    ("fields", "path", "fix"),
    [
        ({"env": {"A": "[redacted]"}}, "env.A", "name the secret: {secret: NAME}"),
        ({"env": {"A": "u:[redacted]@h"}}, "env.A", "name the secret: {secret: NAME}"),
        ({"labels": {"a": "[redacted]"}}, "labels.a", "write the value that it stands for"),
        ({"engine": "custom", "command": ["run", "-k [redacted]"]}, "command[1]", "write the value"),
        ({"args": {"utilization": ["[redacted]"]}}, "args.utilization[0]", "write the value"),
    ],
)
def test_the_mark_is_refused_with_the_field_and_the_fix(fields: dict[str, object], path: str, fix: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_spec({"engine": "simulated", **fields}, name="chat")
    (problem,) = refused.value.problems
    assert problem.path == path
    assert problem.message.startswith("contains [redacted], which answers show in place of a secret's value; ")
    assert fix in problem.message


def test_it_is_refused_in_files_and_policies() -> None:
    first, second = (f"kind: Deployment\nname: {name}\nengine: simulated\n" for name in ("a", "b"))
    text = f"{first}---\n{second}env: {{A: '[redacted]'}}"
    with pytest.raises(ManifestError, match=r"^\[1\]\.env\.A: contains"):
        parse_manifests(text)
    with pytest.raises(ManifestError, match=r"^webhook: contains \[redacted\]"):
        parse_policy_spec({"min_gpu_utilization": 1, "time_window": 60, "webhook": "https://h/[redacted]"}, name="p")


def test_other_texts_in_brackets_are_taken() -> None:
    assert parse_spec({"engine": "simulated", "env": {"A": "[redact]"}}).env == {"A": "[redact]"}
