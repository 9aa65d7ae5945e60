"""docs/alerts.md: the rules for Prometheus and the boards for Grafana, from their files in deploy/."""

from pathlib import Path
from typing import Any, Final

import yaml

from tables import code, sentence, table

DEPLOY: Final = Path(__file__).resolve().parents[2] / "deploy"
HEAD: Final = """\
# Alerts and boards

<!-- Written by `make reference` from deploy/prometheus/gpuward-rules.yaml and deploy/grafana/boards.yaml. -->

The alerts, recorded series and boards that come with Gpuward. [Monitoring](monitoring.md) describes how to use them.
"""


def _rules() -> list[dict[str, Any]]:
    text = (DEPLOY / "prometheus" / "gpuward-rules.yaml").read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def _plain(text: str) -> str:
    """A text of a rule, with what Prometheus fills in as `…` and without pipes, which end a cell."""
    parts = text.split("{{")
    return sentence("…".join([parts[0], *(part.partition("}}")[2] for part in parts[1:])]).replace("|", "/"))


def _alerts() -> list[str]:
    rows = [
        (
            code(rule["alert"]),
            rule["labels"]["severity"],
            rule.get("for", "at once"),
            _plain(rule["annotations"]["summary"]),
            _plain(rule["annotations"]["description"]),
            f"[more]({rule['annotations']['page']})",
        )
        for rule in _rules()
        if "alert" in rule
    ]
    return ["## Alerts", "", *table(("alert", "severity", "after", "meaning", "what to do", "page"), rows)]


def _records() -> list[str]:
    rows = [(code(rule["record"]), code(" ".join(rule["expr"].split()))) for rule in _rules() if "record" in rule]
    return ["## Recorded series", "", *table(("series", "is"), rows)]


def _boards() -> list[str]:
    boards = yaml.safe_load((DEPLOY / "grafana" / "boards.yaml").read_text(encoding="utf-8"))
    rows = [(code(f"{board['uid']}.json"), board["title"], sentence(board["about"])) for board in boards]
    return ["## Boards", "", *table(("file", "title", "shows"), rows)]


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_alerts(), *_records(), *_boards()]).rstrip() + "\n"
