"""What tests of commands share."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_hadar.cli.main import main


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``hadar`` with these words; returns (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[str | int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        told = capsys.readouterr()
        return ended.value.code or 0, told.out, told.err

    return run
