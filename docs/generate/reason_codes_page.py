"""docs/reason-codes.md: every reason code, from schemas/*_reasons.py."""

from typing import Final

from schemas.status_reasons import REASONS
from tables import code, sentence, table

HEAD: Final = """\
# Reason codes

<!-- Written by `make reference` from schemas/*_reasons.py. Do not edit. -->

A reason code says why something is as it is. It stands in `status.reason`, in `reason` of events, and in the counts of
`status.explain.rejected`. Programs may match on it: a code keeps its name and its meaning.
`gpuward describe instance NAME` shows the codes of one instance, with the nearest miss and with advice.
"""
# What stands above a group's table.
INTRO: Final = {
    "Placement": "Why a worker or a GPU is ruled out. [Placement](placement.md#filters) has their order.",
    "Instances": "Phases of instances, ends of processes, refusals of agents. [States](states.md) has the phases.",
    "Workers": "Phases and events of workers.",
    "GPUs": "Health and events of GPUs.",
    "Deployments": "Conditions and events of deployments.",
    "Scaling": "Why a deployment wants its number of replicas, and events of that. See [Scaling](scaling.md).",
    "Rollouts": "How far a new revision is with `update: rolling`, and events of that. See [Rollouts](rollouts.md).",
    "Access": "These stand in events of keys, join tokens and secrets.",
    "Controllers": "The state of all controllers together.",
    "Policies": "Verdicts and actions of utilization policies. See [Policies](policies.md).",
}


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for group, reasons in REASONS.items():
        rows = [(code(str(name)), sentence(text.meaning), sentence(text.remedy)) for name, text in reasons.items()]
        lines += [f"## {group}", "", INTRO[group], "", *table(("code", "meaning", "remedy"), rows)]
    return "\n".join(lines).rstrip() + "\n"
