"""The boards for Grafana: made of boards.yaml, and each query of metrics and labels that are exported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.metric_names import kept_labels, metrics, unknown

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
BOARDS: list[dict[str, Any]] = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))]
PANELS = [(board["uid"], panel) for board in BOARDS for panel in board["panels"] if panel["type"] != "row"]
QUERIES = [(uid, panel["title"], target) for uid, panel in PANELS for target in panel["targets"]]
COLUMNS = 24


def test_the_boards_are_of_their_source(tmp_path: Path) -> None:
    for file in ("boards.py", "boards.yaml"):
        shutil.copy(FOLDER / file, tmp_path)
    subprocess.run([sys.executable, str(tmp_path / "boards.py")], check=True, timeout=60)
    made = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.glob("*.json")}
    assert made == {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.json")}, "run make reference"


@pytest.mark.parametrize(("board", "panel", "target"), QUERIES, ids=lambda one: one if isinstance(one, str) else "")
def test_each_query_names_what_is_exported(board: str, panel: str, target: dict[str, Any]) -> None:
    assert unknown(target["expr"], metrics()) == set(), (board, panel)
    shown = {part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
    assert shown <= kept_labels(target["expr"]), "the legend names a label that the query has summed away"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_each_variable_is_a_label_of_its_metric(board: dict[str, Any]) -> None:
    chosen = {one["name"]: one for one in board["templating"]["list"] if one["type"] == "query"}
    for name, one in chosen.items():
        metric = one["query"]["query"].removeprefix("label_values(").partition(",")[0]
        assert name in metrics()[metric]
    written = json.dumps(board["panels"])
    assert all(f"${name}" in written for name in chosen), "a variable that changes nothing"
    assert {"deployment", "worker"} & set(chosen) == {
        name for name in ("deployment", "worker") if f"${name}" in written
    }


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board["uid"])
def test_panels_fill_the_grid_without_overlap(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < COLUMNS
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_understands_each_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:query:{n}", "expr": target["expr"].replace("$", "")}
        for n, (_, _, target) in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}), encoding="utf-8")
    ran = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
