"""Readings of a GPU in words: a value, unsupported, an error and unknown differ."""

from cli.text.gpus import detail_lines, foreign, measure, throttle
from schemas.wire import ForeignProcess, GpuDetails

READ = GpuDetails(
    power_w=350.4, temperature_c=71, throttle=("power_cap",), rows_pending=True, last_xid=13, xids={"13": 2},
    unsupported=("nvlinks", "remapped_rows"), errors={"ecc_uncorrected": "Unknown Error"},
)  # fmt: skip


def test_a_value_unsupported_an_error_and_unknown_differ() -> None:
    assert (measure(READ, "power_w", "W"), measure(READ, "temperature_c", "C")) == ("350W", "71C")
    assert (measure(READ, "nvlinks"), measure(READ, "rows_uncorrected")) == ("n/a", "n/a")
    assert (measure(READ, "ecc_uncorrected"), measure(READ, "recovery"), measure(None, "power_w")) == (
        "error",
        "-",
        "-",
    )
    assert (throttle(READ), throttle(GpuDetails(throttle=())), throttle(GpuDetails())) == ("power_cap", "no", "-")
    assert throttle(GpuDetails(unsupported=("throttle",))) == "n/a"


def test_processes_that_gpuward_did_not_start() -> None:
    one, other = ForeignProcess(pid=42, name="python", memory_mib=1536), ForeignProcess(pid=7)
    assert foreign(GpuDetails(foreign=(one, other))) == "python 42 (1.5GiB), ? 7 (?)"
    assert (foreign(GpuDetails(foreign=())), foreign(GpuDetails()), foreign(None)) == ("none", "-", "-")
    assert dict(detail_lines(GpuDetails(foreign=(one,))))["Not ours"] == "python 42 (1.5GiB)"
    assert dict(detail_lines(GpuDetails(nvlink_peers={"switch": 12, "GPU-a": 6})))["NVLinks to"] == (
        "GPU-a (6x), switch (12x)"
    )


def test_all_that_is_known_is_listed() -> None:
    lines = dict(detail_lines(READ))
    assert (lines["Power"], lines["Remap pending"], lines["Xids"]) == ("350 W", "yes", "13 (2x)")
    assert (lines["ECC uncorrected"], lines["Not readable"]) == ("error", "ecc_uncorrected (Unknown Error)")
    assert not {"NVLinks up", "Recovery"} & lines.keys()
