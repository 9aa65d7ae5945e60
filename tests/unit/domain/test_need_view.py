"""The need as the API shows it: analyzed, else as stated, else unknown."""

import pytest

from controller.domain.placement import Layout, Need, Share, need_view
from schemas.manifest.resources import Resources

UNKNOWN, KNOWN = Need(None), Need(40, parts={"weights": 40}, shares=(Share(2, 1, 1, 22),))
TWO = Layout(2, 22, exclusive=False, tp=2)


@pytest.mark.parametrize(
    ("need", "resources", "layout", "shown"),
    [
        (UNKNOWN, {}, None, (None, False)),
        (UNKNOWN, {"gpu_memory": "all"}, None, (None, False)),
        (UNKNOWN, {"gpu_memory": "20GiB"}, None, (20480, True)),
        (UNKNOWN, {"gpu_memory": "20GiB"}, TWO, (20480, True)),
        (UNKNOWN, {"gpus": 0}, None, (0, True)),
        (KNOWN, {"gpu_memory": "20GiB"}, None, (40, False)),
        (KNOWN, {}, TWO, (22, True)),
    ],
)
def test_a_need_is_worked_out_or_stated_or_unknown(
    need: Need, resources: dict[str, object], layout: Layout | None, shown: tuple[int | None, bool]
) -> None:
    view = need_view(need, Resources.model_validate(resources), None, layout)
    assert (view.memory_mib, view.per_gpu) == shown
