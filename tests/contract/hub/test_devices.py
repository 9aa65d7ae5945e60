"""Which reported GPUs count as changed."""

import pytest
from msgspec.structs import replace

from controller.hub.devices import properties_differ
from schemas.wire import GpuDetails, ReportedGpu

GPU = ReportedGpu(uuid="GPU-1", index=0, model="H100", memory_mib=81920, used_mib=0, utilization=0.0)
OTHER = replace(GPU, uuid="GPU-2", index=1)


def test_readings_and_order_make_no_difference() -> None:
    busy = replace(GPU, used_mib=4096, utilization=93.5, details=GpuDetails(power_w=300))
    assert not properties_differ((GPU, OTHER), (OTHER, busy))
    assert not properties_differ((GPU,), (replace(GPU, used_mib=None, utilization=None),))
    assert not properties_differ(None, None)
    assert properties_differ((GPU,), None)
    assert properties_differ(None, ())
    assert properties_differ((GPU,), (GPU, OTHER))


@pytest.mark.parametrize("field", sorted(set(ReportedGpu.__struct_fields__) - {"used_mib", "utilization", "details"}))
def test_every_other_fact_makes_a_difference(field: str) -> None:
    assert properties_differ((GPU,), (replace(GPU, **{field: "something else"}),))
