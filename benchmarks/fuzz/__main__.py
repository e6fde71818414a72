"""``make fuzz``: every parser fed with mutations of real samples.

    python -m benchmarks.fuzz [--seconds 60] [--seed 1] [--target squeue] [--json F]

Prints cases tried and crashes per parser. A crash is an error that is not one of ours, a case that takes longer than
five seconds, or one that asks for more memory than four gigabytes. Exit code 1 if there was one; its input is kept.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.fuzz.run import Result, alone, fuzz, limit_memory
from benchmarks.fuzz.targets import targets


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="For all parsers together.")
@click.option("--seed", default=1, show_default=True)
@click.option("--target", "only", multiple=True, help="Only these parsers.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the report as JSON too.")
@click.option("--keep", type=click.Path(path_type=Path), default=Path("fuzz-crashes"), show_default=True,
              help="Folder for inputs that crashed a parser.")  # fmt: skip
def main(seconds: float, seed: int, only: tuple[str, ...], report: Path | None, keep: Path) -> None:
    """Feed every parser with mutations of real samples."""
    limit_memory()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="hadar-fuzz-") as folder:
        chosen = [t for t in targets(Path(folder)) if not only or t.name in only]
        if not chosen:
            raise click.UsageError(f"no such parser; there are: {', '.join(t.name for t in targets(Path(folder)))}")
        for target in chosen:
            until = time.monotonic() + seconds / len(chosen)
            result = fuzz(target, random.Random(f"{seed}/{target.name}"), Path(folder), until=until)
            results.append(result)
            click.echo(
                f"{target.name:<26}{result.cases:>9} cases {result.refused:>9} refused {result.crashes:>4} crashes"
            )
            for number, (data, why) in enumerate(result.examples):
                keep.mkdir(parents=True, exist_ok=True)
                file = keep / f"{target.name.replace(' ', '-').replace(',', '')}-{number}"
                file.write_bytes(data)
                click.echo(f"  {why}\n  input: {file} ({alone(data)})")
    crashes = sum(r.crashes for r in results)
    click.echo(f"{sum(r.cases for r in results)} cases, {len(results)} parsers, {crashes} crashes")
    if report is not None:
        rows = [{"parser": r.name, "cases": r.cases, "refused": r.refused, "crashes": r.crashes} for r in results]
        report.write_text(json.dumps({"seed": seed, "parsers": rows, "crashes": crashes}, indent=1) + "\n")
    sys.exit(1 if crashes else 0)


if __name__ == "__main__":
    main()
