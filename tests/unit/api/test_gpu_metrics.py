"""What is read of GPUs, as metrics."""

from controller.api.resources.metrics import figures_text
from controller.store.views.metrics import Figures, GpuFigures


def test_readings_are_exported_in_base_units_and_unknown_ones_are_absent() -> None:
    gpus = {
        ("w", "GPU-a"): GpuFigures(
            healthy=True, details={"power_w": 350.5, "energy_j": 12.0, "sm_clock_mhz": 1980, "xids": {"13": 2}}
        ),
        ("w", "GPU-b"): GpuFigures(healthy=None, details={}),
        ("w", "GPU-c"): GpuFigures(healthy=False, details={"temperature_c": 71.0, "ecc_uncorrected": 3}),
    }
    lines = figures_text(Figures({}, {}, {}, {}, {}, gpus=gpus), leading=True, version="1").decode().splitlines()
    found = {line.split("{")[0]: line for line in lines if "GPU-" in line}
    assert found["gpuward_gpu_power_watts"].endswith(" 350.5")
    assert found["gpuward_gpu_energy_joules_total"].endswith(" 12.0")
    assert found["gpuward_gpu_sm_clock_hertz"].endswith(" 1.98e+09")
    assert found["gpuward_gpu_xids_total"] == 'gpuward_gpu_xids_total{gpu_uuid="GPU-a",worker="w",xid="13"} 2.0'
    assert found["gpuward_gpu_temperature_celsius"].endswith(" 71.0")
    assert found["gpuward_gpu_ecc_uncorrected_errors_total"].endswith(" 3.0")
    assert "gpuward_gpu_memory_clock_hertz" not in found
    healthy = [line for line in lines if line.startswith("gpuward_gpu_healthy{")]
    assert [line[-3:] for line in healthy] == ["1.0", "0.0"]
