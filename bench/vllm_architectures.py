"""Writes the model architectures that each version of vLLM serves, from the registry in its package.

make vllm-architectures ARGS='vllm-0.33.0-....whl ...'         adds versions from wheels, which are not installed
make vllm-architectures ARGS='0.33.0=/folder/registry.py ...'  from registries that were unpacked

Get a wheel by `pip download --no-deps vllm==0.33.0`. No code of it is run: the registry's tables are literals.
"""

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).resolve().parent.parent / "controller" / "engines" / "servers" / "vllm_architectures.json"
REGISTRY: Final = "vllm/model_executor/models/registry.py"
_WHEEL: Final = re.compile(r"vllm-(\d+(?:\.\d+)+)\S*\.whl")
_TABLE: Final = re.compile(r"_([A-Z_]+)_MODELS")
# Tables of models that return vectors or scores. Before 0.18 the first two had the other models.
_POOLING: Final = frozenset(
    {"EMBEDDING", "CROSS_ENCODER", "LATE_INTERACTION", "REWARD", "TOKEN_CLASSIFICATION", "SEQUENCE_CLASSIFICATION"}
)
# Tables of models that the version does not serve itself: former models, plugins' models, and the tables' union.
_OTHER: Final = frozenset({"PREVIOUSLY_SUPPORTED", "OOT_SUPPORTED", "VLLM"})


def tables(source: str) -> dict[str, frozenset[str]]:
    names_of: dict[str, frozenset[str]] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Dict):
            continue
        if (match := _TABLE.fullmatch(target.id)) is not None:
            keys = (key.value for key in value.keys if isinstance(key, ast.Constant))
            names_of[match[1]] = frozenset(key for key in keys if isinstance(key, str))
    if not {"TEXT_GENERATION", "MULTIMODAL"} <= names_of.keys():
        raise SystemExit("the registry has no table of models: its form has changed")
    return names_of


def with_version(data: Mapping[str, Any], version: str, source: str) -> dict[str, Any]:
    names_of = tables(source)
    versions = sorted({*data["versions"], version}, key=number)
    serves = frozenset().union(*(names for table, names in names_of.items() if table not in _OTHER))
    pools = frozenset().union(*(names for table, names in names_of.items() if table in _POOLING))
    generates = frozenset().union(*(names_of[table] for table in names_of.keys() - _POOLING - _OTHER))
    served = {name: set(_expanded(data["versions"], spans)) for name, spans in data["architectures"].items()}
    for name in {*served, *serves}:
        served.setdefault(name, set()).discard(version)
        if name in serves:
            served[name].add(version)
    newest = version == versions[-1]
    return {
        "versions": versions,
        "architectures": {name: _spans(versions, served[name]) for name in sorted(served) if served[name]},
        "pooling": sorted(
            {*data["pooling"], *pools} - generates if newest else {*data["pooling"], *(pools - generates)}
        ),
        "plugins": sorted(names_of.get("OOT_SUPPORTED", frozenset())) if newest else data["plugins"],
    }


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _expanded(versions: list[str], spans: list[list[str]]) -> Iterator[str]:
    for first, last in spans:
        yield from versions[versions.index(first) : versions.index(last) + 1]


def _spans(versions: list[str], served: set[str]) -> list[list[str]]:
    """The first and the last version of each run of versions."""
    spans: list[list[str]] = []
    for before, version in zip([None, *versions], versions, strict=False):
        if version in served and before in served and spans:
            spans[-1][1] = version
        elif version in served:
            spans.append([version, version])
    return spans


def _source(place: str) -> tuple[str, str]:
    version, _, path = place.partition("=")
    if path:
        return version, Path(path).read_text(encoding="utf-8")
    match = _WHEEL.fullmatch(Path(place).name)
    if match is None:
        raise SystemExit(f"{place}: not a wheel of vLLM; write VERSION=FILE for its registry")
    with zipfile.ZipFile(place) as wheel:
        return match[1], wheel.read(REGISTRY).decode()


def text_of(data: Mapping[str, Any]) -> str:
    lines = [f"    {json.dumps(name)}: {json.dumps(spans)}" for name, spans in data["architectures"].items()]
    rest = {key: json.dumps(data[key]) for key in ("versions", "pooling", "plugins")}
    return (
        "{\n"
        + "".join(f'  "{key}": {value},\n' for key, value in rest.items())
        + '  "architectures": {\n'
        + ",\n".join(lines)
        + "\n  }\n}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the architectures that each version of vLLM serves.")
    parser.add_argument("places", nargs="+", help="wheels, or VERSION=FILE for a registry")
    data: dict[str, Any] = {"versions": [], "architectures": {}, "pooling": [], "plugins": []}
    if DATA.exists():
        data = json.loads(DATA.read_text(encoding="utf-8"))
    for version, source in sorted(map(_source, parser.parse_args().places), key=lambda pair: number(pair[0])):
        data = with_version(data, version, source)
    DATA.write_text(text_of(data), encoding="utf-8")
    print(f"wrote {DATA}: {len(data['architectures'])} architectures in {len(data['versions'])} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
