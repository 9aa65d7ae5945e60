"""Coverage in SQL, for graphs and minutes: as `decide/policies/windows.py` defines it for verdicts.

A sample covers the seconds that were read, and none before the previous sample of its GPU. A sample of an older agent,
which does not say what it read, covers its own period.
"""

from typing import Final

READ: Final = "coalesce({0}.read_s, {0}.period_s) * interval '1 s'"  # what a sample covers, at most


def covered_since(sample: str, partition: str) -> str:
    """Where the time that a sample covers begins.

    `sample`: the alias of `samples`. `partition`: the columns that distinguish series.
    """
    before = f"lag({sample}.at) over (partition by {partition} order by {sample}.at)"
    return f"greatest({before}, {sample}.at - {READ.format(sample)})"
