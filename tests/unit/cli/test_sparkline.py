import pytest

from cli.sparkline import chart, sparkline


def test_a_block_for_each_value_and_a_gap_for_what_is_unknown():
    assert sparkline([0, 100, 50, None, 99, 12.4, 12.5]) == "▁█▅ █▁▂"
    assert sparkline([]) == ""


def test_neighbours_share_a_block_and_the_highest_counts():
    assert sparkline([0, 0, 0, 100, None, None], 3) == "▁█ "
    assert sparkline([0, 100], 10) == "▁█"


def test_a_chart_has_the_threshold_as_a_line_where_nothing_is_higher():
    rows = chart([0, 100, None, 30], 50)
    assert rows == [
        "│ █  │",
        "│┄█ ┄│ 50 %",
        "│ █ ▂│",
        "│▁█ █│",
    ]


@pytest.mark.parametrize("threshold", [1, 50, 99, 100])
def test_the_line_is_in_exactly_one_row(threshold):
    rows = chart([0.0] * 3, threshold)
    assert sum(row.endswith(f" {threshold} %") for row in rows) == 1
    assert len(chart([0.0], None)) == 4
