"""`gpuward cache list` shows each revision of a model."""

from cli.verbs.cache import by_revision

AT = "2026-01-01T00:00:00Z"
NEW = {"commit": "b" * 40, "names": ["main"], "size_bytes": 5, "used_at": AT, "in_use": True}
OLD = {"commit": "a" * 40, "names": [], "size_bytes": 4, "used_at": "2025-01-01T00:00:00Z", "in_use": False}
MODEL = {"name": "hf:org/m", "size_bytes": 7, "used_at": AT, "in_use": True, "revisions": {"main": "b" * 40}}


def test_each_revision_has_a_row_with_its_own_figures() -> None:
    rows = by_revision({**MODEL, "snapshots": [NEW, OLD]})
    assert [(row["size_bytes"], row["in_use"], row["snapshots"]) for row in rows] == [
        (5, True, [NEW]),
        (4, False, [OLD]),
    ]
    assert {row["name"] for row in rows} == {"hf:org/m"}


def test_an_older_agent_tells_of_models_alone() -> None:
    assert by_revision(MODEL) == [MODEL]
