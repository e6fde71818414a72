"""``hadar doctor``: what would not work here, why it matters, and the fix."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from slurm_hadar.cli.common import console, json_option, print_json
from slurm_hadar.config import Config, load
from slurm_hadar.controller.words import plain
from slurm_hadar.doctor.examine import AWAY, examine
from slurm_hadar.doctor.finding import Finding, Verdict
from slurm_hadar.errors import ConfigError

__all__ = ["doctor"]

_COLOURS = {Verdict.PROBLEM: "bold red", Verdict.WARNING: "yellow", Verdict.NOTE: "cyan", Verdict.OK: "green"}
_WORDS = {Verdict.UNKNOWN: "cannot tell"}
_PLURALS = {Verdict.PROBLEM: "problems", Verdict.WARNING: "warnings", Verdict.NOTE: "notes"}
_NAME = max(len("accounted_gpus"), len("requeue_delay"))


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting.")
@click.option("--verbose", "-v", is_flag=True, help="Also say of what is well why it was looked at.")
@json_option
def doctor(path: Path | None, settings: tuple[str, ...], verbose: bool, as_json: bool) -> int:
    """Look at Slurm and this host, changing nothing: what would not work, why it matters, and the fix.

    To a user who cannot change Slurm it says what they themselves can do, and what to ask their administrator for.

    Exit code 1 if there is a problem; warnings, notes and what cannot be told leave it 0.
    """
    try:
        config, fault = load(path, settings), ""
    except ConfigError as error:
        config, fault = Config(), str(error)

    def say(whom: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"asking {whom}, {config.slurm.timeout_s:g} s at most ...", err=True)

    findings = examine(config, fault, say)
    if as_json:
        print_json(_as_dict(findings))
    else:
        _tell(findings, verbose)
    return 1 if any(f.verdict is Verdict.PROBLEM for f in findings) else 0


def _as_dict(findings: list[Finding]) -> dict[str, Any]:
    counts = Counter(f.verdict for f in findings)
    return {
        "counts": {str(v): counts[v] for v in Verdict},
        "checks": [
            {
                "check": f.check,
                "verdict": str(f.verdict),
                "found": f.found,
                "why": f.why,
                "fix": f.fix,
                "ask": f.ask,
                "link": f.link,
            }
            for f in findings
        ],
    }


def _tell(findings: list[Finding], verbose: bool) -> None:
    """The worst first; checks that could not be made for want of a Slurm are counted, not listed."""
    out = console()
    order = list(Verdict)
    unmade = [f for f in findings if f.found.endswith(f": {AWAY}")]
    for finding in sorted((f for f in findings if f not in unmade), key=lambda f: order.index(f.verdict)):
        _print(out, finding, verbose)
    if unmade:
        out.print(Text(f"cannot tell  {len(unmade)} more checks need a Slurm that answers"))
    counts = Counter(f.verdict for f in findings)
    out.print(Text("\n" + ", ".join(_counted(v, counts[v]) for v in order if counts[v])))


def _counted(verdict: Verdict, count: int) -> str:
    if verdict is Verdict.UNKNOWN:
        return f"{count} cannot be told"
    return f"{count} {verdict if count == 1 or verdict is Verdict.OK else _PLURALS[verdict]}"


def _print(out: Console, finding: Finding, verbose: bool) -> None:
    """The verdict, the check and what was found; of what is not well, why it matters, the fix, and where to read on.

    A fix stands on a line of its own whatever the width, so that it can be copied.
    """
    word, colour = _WORDS.get(finding.verdict, str(finding.verdict)), _COLOURS.get(finding.verdict, "")
    indent = " " * (12 + 1 + _NAME + 1)
    found = finding.found.removeprefix("cannot tell: ")
    lines = textwrap.wrap(plain(found), max(30, out.width - len(indent)), break_long_words=False) or [""]
    out.print(Text.assemble((f"{word:<12} ", colour), f"{finding.check:<{_NAME}} {lines[0]}"), soft_wrap=True)
    for line in lines[1:]:
        out.print(Text(indent + line), soft_wrap=True)
    if not verbose and finding.verdict in (Verdict.OK, Verdict.UNKNOWN):
        return
    for line in textwrap.wrap(finding.why, max(30, out.width - len(indent) - 5), break_long_words=False):
        out.print(Text(f"{indent}{line}", style="dim"), soft_wrap=True)
    for word, text in (("fix", finding.fix), ("ask your administrator", finding.ask)):
        if text:
            out.print(Text(f"{indent}{word}: {plain(text)}"), soft_wrap=True)
    if finding.verdict is not Verdict.OK:
        out.print(Text(f"{indent}see: {finding.link}", style="dim"), soft_wrap=True)
