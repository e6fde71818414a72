"""The page of A-SRPT's results says what its runs gave."""

from pathlib import Path

from benchmarks.asrpt import page

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def test_the_page_is_current(tmp_path: Path) -> None:
    """docs/results/asrpt.md is what the runs beside it give; refresh it with `python -m benchmarks.asrpt orders`."""
    page.publish(RESULTS, tmp_path)
    assert (tmp_path / "asrpt.md").read_text() == (RESULTS / "asrpt.md").read_text()
    assert (tmp_path / "asrpt.png").stat().st_size > 10_000
