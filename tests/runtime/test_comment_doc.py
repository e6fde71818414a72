"""docs/comment.md lists exactly the keys of the grammar."""

from pathlib import Path

from slurm_hadar import comment

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comment.md"


def table() -> str:
    rows = [f"| `{name}` | `{name}={key.example}` | {key.doc} |" for name, key in comment.KEYS.items()]
    return "\n".join(["| key | such as | meaning |", "| --- | --- | --- |", *rows])


def test_the_page_lists_exactly_the_keys() -> None:
    """Key, example and meaning on the page are those of the code, all of them, in the same order."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert "\n".join(lines) == table()
