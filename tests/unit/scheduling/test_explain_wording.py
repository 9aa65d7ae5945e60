"""The one line that says why an instance is pending."""

from msgspec.structs import replace

from controller.scheduling.explain.unplaced import one_line, with_note
from schemas.api.explain import Explain, NearestMiss

NEAREST = NearestMiss(worker="gpu-7", code="need_gt_free", need_gib=38.0, free_gib=22.13, message="need ...")


def test_codes_become_words() -> None:
    explain = Explain(workers=12, rejected={"need_gt_free": 8, "not_ready": 3, "os_arch": 1}, nearest=NEAREST)
    assert one_line(explain) == "0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch"


def test_reasons_with_the_same_word_are_added_up() -> None:
    explain = Explain(workers=3, rejected={"need_gt_free": 1, "need_gt_capacity": 2}, nearest=NEAREST)
    assert one_line(explain) == "0/3 fit: 3 VRAM (need 38 GiB, best free 22.1 on gpu-7)"


def test_sizes_that_would_look_equal_get_two_decimals() -> None:
    near = replace(NEAREST, need_gib=22.14)
    assert "need 22.14 GiB, best free 22.13 on" in one_line(
        Explain(workers=1, rejected={"need_gt_free": 1}, nearest=near)
    )


def test_unknown_names_and_unknown_codes() -> None:
    explain = Explain(workers=1, rejected={"made_of_cheese": 1}, unknown=["w9", "GPU-x"])
    assert one_line(explain) == "0/1 fit: 1 made of cheese; no such worker or GPU: w9, GPU-x"


def test_no_worker() -> None:
    assert one_line(Explain(workers=0)) == "0/0 fit: no worker has joined yet"


def test_a_note_ends_the_headline_and_no_note_changes_nothing() -> None:
    explain = Explain(workers=1, message="0/1 fit: 1 VRAM")
    noted = with_note(explain, "reserved for a-1")
    assert (noted.message, noted.note) == ("0/1 fit: 1 VRAM; reserved for a-1", "reserved for a-1")
    assert with_note(explain, "") == explain
