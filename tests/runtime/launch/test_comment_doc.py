"""docs/comment.md lists exactly the keys of the grammar, and the templates use them rightly."""

import re
from pathlib import Path

import pytest

from slurm_hadar import comment

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "comment.md"


def table() -> str:
    rows = [f"| `{name}` | `{name}={key.example}` | {key.doc} |" for name, key in comment.KEYS.items()]
    return "\n".join(["| key | such as | meaning |", "| --- | --- | --- |", *rows])


def test_the_page_lists_exactly_the_keys() -> None:
    """Key, example and meaning on the page are those of the code, all of them, in the same order."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert "\n".join(lines) == table()


@pytest.mark.parametrize("template", sorted((ROOT / "sbatch_templates").glob("*.sbatch")), ids=lambda p: p.stem)
def test_templates_go_on_at_their_time_limit_where_the_script_resumes(template: Path) -> None:
    """Their comments are valid; copies of a forked job have no checkpoint of their own to resume from."""
    text = template.read_text()
    found = re.search(r"(?m)^#SBATCH --comment=(\S+)", text)
    said = comment.parse(found[1]) if found else comment.JobComment()

    assert bool(said.requeue_on_timeout) is ("it resumes from its checkpoint" in text)
