"""Why an instance is pending, its need and its layout, as text."""

from cli.text.explanations import explain_lines, layout_line, need_lines
from schemas.api.explain import Explain, NearestMiss, TriedLayout
from schemas.api.needs import LayoutView, NeedView

NEAREST = NearestMiss(worker="gpu-7", code="need_gt_free", need_gib=38.0, free_gib=22.13, message="need ...")


def test_all_lines() -> None:
    explain = Explain(
        workers=2, gpus=8, rejected={"not_ready": 1, "heads_indivisible": 1}, nearest=NEAREST,
        tried=[TriedLayout(gpus=2, tp=2, reason="heads_indivisible")], advice=["fits with tp: 5, pp: 1, dp: 1"],
    )  # fmt: skip
    assert explain_lines(explain) == [
        "0 of 2 workers fit (8 GPUs checked)",
        "1 x not_ready",
        "1 x heads_indivisible",
        "nearest: gpu-7 (need_gt_free, need ...)",
        "ruled out: 2 GPUs, tp 2 (heads_indivisible)",
        "fits with tp: 5, pp: 1, dp: 1",
    ]


def test_need_and_layout() -> None:
    need = NeedView(
        memory_mib=3 * 1024, parts={"weights": 2048, "cache": 1024}, per_gpu=True, host_memory_mib=1024, context=8192,
        sequences=16, notes=["vllm: loads it best"],
    )  # fmt: skip
    assert need_lines(need) == [
        "GPU memory: 3GiB per GPU",
        "  weights  2GiB",
        "  cache    1GiB",
        "host memory: 1GiB",
        "sufficient for 16 concurrent sequences of 8192 tokens",
        "vllm: loads it best",
    ]
    assert need_lines(NeedView(memory_mib=None)) == ["GPU memory: unknown, so whole GPUs are claimed"]
    assert need_lines(NeedView(memory_mib=0)) == ["GPU memory: none"]
    assert layout_line(LayoutView(gpus=1)) == "1 GPU"
    assert layout_line(LayoutView(gpus=8, workers=2, tp=4, pp=2)) == "8 GPUs on 2 workers (tp 4, pp 2)"
