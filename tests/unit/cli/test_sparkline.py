import pytest

from cli.text.sparkline import chart, sparkline


def test_each_value_is_a_block_and_unknown_is_a_gap():
    assert sparkline([0, 100, 50, None, 99, 12.4, 12.5]) == "▁█▅ █▁▂"
    assert sparkline([]) == ""


def test_neighbours_that_share_a_block_show_their_maximum():
    assert sparkline([0, 0, 0, 100, None, None], 3) == "▁█ "
    assert sparkline([0, 100], 10) == "▁█"


def test_a_chart_draws_the_threshold_as_a_line():
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
