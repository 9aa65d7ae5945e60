"""Manifests are parsed strictly, and every refusal names the field and the fix."""

import json

import pytest

from schemas.manifest.parse import parse_manifests, parse_spec
from schemas.manifest.problems import ManifestError

HEAD = "kind: Deployment\nname: a\nmodel: hf:a/b\n"


def problems(text: str) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        parse_manifests(text)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_yaml_documents_and_json_give_the_same_manifests() -> None:
    yaml = "---\nkind: Deployment\nname: a\nmodel: hf:a/b\n---\n---\nkind: Deployment\nname: b\nmodel: path:/m\n"
    as_json = json.dumps([
        {"kind": "Deployment", "name": "a", "model": "hf:a/b"},
        {"kind": "Deployment", "name": "b", "model": "path:/m"},
    ])  # fmt: skip
    assert parse_manifests(yaml) == parse_manifests(as_json)
    assert [manifest.name for manifest in parse_manifests(yaml)] == ["a", "b"]


def test_scalars_keep_the_written_value() -> None:
    text = HEAD + "args: {a: on, b: 010, c: 1:30, d: 2024-01-01, e: 1e3, f: 1.5, g: ~, h: , i: -7, j: true, k: '5'}"
    assert parse_manifests(text)[0].args == {
        "a": "on", "b": "010", "c": "1:30", "d": "2024-01-01", "e": 1000.0, "f": 1.5, "g": None, "h": None, "i": -7,
        "j": True, "k": "5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "path", "part"),
    [
        (HEAD + "resorces: {gpus: 1}", "resorces", "did you mean 'resources'?"),
        (HEAD + "resources: {gpu: 1}", "resources.gpu", "did you mean 'gpus'?"),
        (HEAD + "env: {A: {secrt: x, secret: y}}", "env.A.secrt", "did you mean 'secret'?"),
        (HEAD + "zzz: 1", "zzz", "known: args, command,"),
        (HEAD + "resources: {gpus: two}", "resources.gpus", "must be a whole number or 'auto', got 'two'"),
        (HEAD + "resources: {gpu_memory: 20}", "resources.gpu_memory", "such as 20GiB"),
        (HEAD + "env: {A: [1]}", "env.A", "must be text, or {secret: NAME}"),
        (HEAD + "placement: {gpus: [x, x]}", "placement.gpus", "remove one"),
        (HEAD + "probe: {path: x}", "probe.path", "starts with '/'"),
        (HEAD + "replicas: -1", "replicas", "must be at least 0, got -1"),
        (HEAD + "replicas: true", "replicas", "must be a whole number or {min: 0, max: 4}, got true"),
        (HEAD + "resources: {gpus: yes}", "resources.gpus", "must be a whole number or 'auto', got 'yes'"),
        (HEAD + "resources: {cpus: true}", "resources.cpus", "must be a number or 'auto'"),
        (HEAD + "parallel: {tp: false}", "parallel.tp", "must be a number or 'auto'"),
        (HEAD + "resources: {gpus: 1, gpu_memory: 0GiB}", "resources.gpu_memory", "must be more than 0; write a size"),
        (HEAD + "engine: custom\ncommand: python x.py", "command", "must be a list, such as [a, b], got 'python x.py'"),
        (HEAD + "engine: custom\ncommand: [python, 3]", "command[1]", "must be text in quotes, got 3"),
        (HEAD + "engine: custom\ncommand: ['', a]", "command", "name the program to run"),
        (HEAD + "labels: [a]", "labels", "must be a mapping, such as {a: b}"),
        (HEAD + "restart: sometimes", "restart", "'always', 'on_failure' or 'never', got 'sometimes'"),
        (HEAD + "engine: custom", "command", "is required by engine custom"),
        (HEAD + "parallel: {tp: 2}\nresources: {gpus: 3}", "parallel", "make them equal"),
        (HEAD + "name: b", "", "duplicate key 'name'"),
        (HEAD + "labels: &x {a: b}\nargs: *x", "", "alias *x is not supported"),
        (HEAD + "args: {a: !!binary aGVsbG8=}", "", "tag tag:yaml.org,2002:binary is not supported"),
        (HEAD + "args: {a: !!python/object:os.system x}", "", "is not supported"),
        (HEAD + "args: {a: 99999999999999999999}", "args.a", "exceeds 64 bits"),
        (HEAD + 'args: {a: "x\\0y"}', "args.a", "NUL"),
        (HEAD + "1: 2", "", "key 1 must be text"),
        ("kind: Deploymnt", "kind", "did you mean 'Deployment'?"),
        ("name: a", "kind", "write kind: Deployment"),
        ("kind: Deployment\nmodel: hf:a/b", "name", "is required; add it"),
        ("kind: Deployment\nname: A_\nmodel: hf:a/b", "name", "is not a valid name"),
        ("kind: Deployment\nname: a\nmodel: qwen", "model", "write hf:org/name[@revision]"),
        ("a: [1, 2", "", "correct the YAML"),
        ("", "", "contains no manifest"),
        ("just text", "", "must be a mapping"),
        ("[" * 100, "", "nested deeper than 32"),
        ("[" * 100_000, "", "nested deeper than 32"),
        ("# " + "x" * 2**20, "", "the limit is 1048576"),
        ('{"kind": "Deployment", "kind": "Deployment"}', "", "duplicate key"),
        ('{"kind": "Deployment", "name": "a", "args": {"x": NaN}}', "args.x", "must be a finite number"),
        ('{"kind": ' + "1" * 5000 + "}", "", "exceeds 64 bits"),
    ],
)
def test_refusals_name_field_and_fix(text: str, path: str, part: str) -> None:
    found = problems(text)
    assert path in found, found
    assert part in found[path]


def test_all_problems_are_reported_at_once_with_their_manifest() -> None:
    text = HEAD + "replcas: 3\nrestart: x\n---\nkind: Deployment\nname: b\nmodel: hf:a/b\npriority: 5000\n"
    assert set(problems(text)) == {"[0].replcas", "[0].restart", "[1].priority"}


def test_duplicate_names_are_refused() -> None:
    assert "also the name of manifest [0]" in problems(HEAD + "---\n" + HEAD)["[1].name"]


def test_values_that_may_be_secrets_are_never_shown() -> None:
    found = problems(HEAD + "env: {TOKEN: [hunter2], OTHER: {secret: HUNTER2}}")
    assert not any("hunter2" in message.lower() for message in found.values())


@pytest.mark.parametrize(
    "field", ["args: {token: {secret: hf}}", "args: {k: [a, {secret: hf}]}", "command: [serve, {secret: hf}]"]
)
def test_arguments_cannot_refer_to_secrets(field: str) -> None:
    (path,) = problems(HEAD + field)
    assert path.startswith(("args", "command"))


def test_a_spec_is_a_manifest_without_kind_and_name() -> None:
    manifest = parse_manifests(HEAD + "replicas: 2")[0]
    body = manifest.spec().model_dump(mode="json")
    assert parse_spec(body) == manifest.spec()
    with pytest.raises(ManifestError, match="name: unknown key"):
        parse_spec({**body, "name": "a"})
    headed = {"kind": "Deployment", "name": "a", **body}
    assert parse_spec(headed, name="a") == parse_spec(body, name="a") == manifest.spec()
    for wrong, words in (
        ({"name": "b"}, "name: 'b' differs from 'a' in the path"),
        ({"kind": "Job"}, "kind: 'Job' differs from 'Deployment' in the path"),
        ({"replcas": 1}, "replcas: unknown key; did you mean 'replicas'"),
    ):
        with pytest.raises(ManifestError, match=words):
            parse_spec({**headed, **wrong}, name="a")
    with pytest.raises(ManifestError, match="one JSON object"):
        parse_spec([body])
