"""Why an instance is pending, its need and its layout, as text."""

from cli.explanations import explain_lines, layout_line, need_lines
from schemas.api.explain import Explain, NearestMiss, TriedLayout
from schemas.api.needs import LayoutView, NeedView
from schemas.explain_text import one_line

NEAREST = NearestMiss(worker="gpu-7", code="need_gt_free", need_gib=38.0, free_gib=22.13, message="need ...")


def test_one_line_for_ps() -> None:
    explain = Explain(workers=12, rejected={"need_gt_free": 8, "not_ready": 3, "os_arch": 1}, nearest=NEAREST)
    assert one_line(explain) == "0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch"


def test_reasons_with_the_same_word_are_added_up() -> None:
    explain = Explain(workers=3, rejected={"need_gt_free": 1, "need_gt_capacity": 2}, nearest=NEAREST)
    assert one_line(explain) == "0/3 fit: 3 VRAM (need 38 GiB, best free 22.1 on gpu-7)"


def test_sizes_that_would_look_equal_get_two_decimals() -> None:
    near = NEAREST.model_copy(update={"need_gib": 22.14})
    assert "need 22.14 GiB, best free 22.13 on" in one_line(
        Explain(workers=1, rejected={"need_gt_free": 1}, nearest=near)
    )


def test_unknown_names_and_unknown_codes() -> None:
    explain = Explain(workers=1, rejected={"made_of_cheese": 1}, unknown=["w9", "GPU-x"])
    assert one_line(explain) == "0/1 fit: 1 made of cheese; unknown workers or GPUs: w9, GPU-x"
    assert one_line(Explain(workers=0, message="0/0 fit: no worker has joined yet")).startswith("0/0 fit")


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
