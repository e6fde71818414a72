"""HTML pages in one file: tables and pictures inside, nothing fetched from anywhere; for light, dark and phones."""

from __future__ import annotations

import base64
import datetime as dt
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slurm_hadar import __version__
from slurm_hadar.controller.words import plain

__all__ = [
    "STYLE",
    "Cell",
    "best_of",
    "code",
    "details",
    "figure",
    "hours",
    "listing",
    "page",
    "paragraph",
    "percent",
    "section",
    "table",
    "when",
]

#: The look that all our pages share.
STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1d232b;--faint:#d5dae1;--soft:#f4f6f8;--dim:#5b6570;--mark:#0072b2}
@media (prefers-color-scheme:dark){:root{--paper:#15191f;--ink:#d9dee5;--faint:#3a424d;--soft:#1d232b;--dim:#9aa5b1;
--mark:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:64rem;margin:0 auto;padding:1.2rem 1rem 3rem}
h1{font-size:1.55rem;line-height:1.25;margin:.4rem 0 .2rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
p{margin:.5rem 0;max-width:46rem}
.dim{color:var(--dim);font-size:.92rem}
.wide{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums;min-width:100%}
th,td{padding:.36rem .55rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--faint)}
th{font-weight:600;color:var(--dim);font-size:.84rem;vertical-align:bottom;white-space:normal}
th:first-child,td:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--paper)}
td.best{font-weight:700;color:var(--mark)}
td.text,th.text{text-align:left;white-space:normal;min-width:12rem}
small{color:var(--dim);font-weight:400}
figure{margin:.8rem 0;overflow-x:auto}
figure img{display:block;width:100%;min-width:40rem;height:auto}
figcaption{color:var(--dim);font-size:.92rem;margin-top:.3rem;max-width:46rem}
pre{background:var(--soft);padding:.7rem .9rem;border-radius:6px;overflow-x:auto;font-size:.86rem;margin:.6rem 0}
ul{padding-left:1.2rem;max-width:46rem}
li{margin:.25rem 0;overflow-wrap:anywhere}
summary{cursor:pointer;color:var(--mark);margin:.5rem 0}
footer{margin-top:3rem;border-top:1px solid var(--faint);padding-top:.6rem}
"""


class Cell(str):
    """Text of a table cell that stands out as the best of its column."""


def page(title: str, lead: str, body: Iterable[str], made: str) -> str:
    """The whole document. ``lead`` and ``made`` (when, by which command) are plain text, ``body`` is HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_text(title)}</h1>\n<p class="dim">{_text(lead)}</p>\n'
        + "\n".join(body)
        + f'\n<footer class="dim">slurm_hadar {_text(__version__)}, {_text(made)}</footer>\n</main>\n</body>\n</html>\n'
    )


def section(title: str, *parts: str) -> str:
    """A heading, plain text, with ``parts`` of HTML below it."""
    return f"<h2>{_text(title)}</h2>\n" + "\n".join(parts)


def paragraph(text: str, dim: bool = False) -> str:
    """A paragraph of plain text."""
    return f'<p class="dim">{_text(text)}</p>' if dim else f"<p>{_text(text)}</p>"


def listing(lines: Iterable[str]) -> str:
    """A list of plain lines."""
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def code(text: str) -> str:
    """Plain text as it is, in a fixed width."""
    return f"<pre>{_text(text)}</pre>"


def details(summary: str, *parts: str) -> str:
    """Folded away until asked for."""
    return f"<details><summary>{_text(summary)}</summary>\n" + "\n".join(parts) + "\n</details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Iterable[int] = ()) -> str:
    """Rows of cells; the first column stays in sight when the rest is scrolled. ``(a, b)`` is a with b small below."""
    wordy = set(text_columns)

    def cells(tag: str, values: Sequence[Any]) -> str:
        return "".join(_cell(tag, value, index in wordy) for index, value in enumerate(values))

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return (
        f'<div class="wide"><table>\n<thead><tr>{cells("th", head)}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'
    )


def _cell(tag: str, value: Any, wordy: bool) -> str:
    main, note = value if isinstance(value, tuple) else (value, "")
    kinds = (["text"] if wordy else []) + (["best"] if isinstance(main, Cell) else [])
    mark = f' class="{" ".join(kinds)}"' if kinds else ""
    below = f"<br><small>{_text(note)}</small>" if note else ""
    return f"<{tag}{mark}>{_text(str(main))}{below}</{tag}>"


def figure(draw: Callable[[bool], bytes], words: str, caption: str = "") -> str:
    """A picture in two versions, light and dark, of which the reader's colour scheme chooses; ``draw`` makes the PNG
    and is told whether for dark, ``words`` say what is to be seen."""
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_uri(draw(True))}">'
        f'<img src="{_uri(draw(False))}" alt="{_text(words)}"></picture>'
        + (f"<figcaption>{_text(caption)}</figcaption>" if caption else "")
        + "</figure>"
    )


def when(moment: float) -> str:
    """Epoch seconds as date and time of this host."""
    return dt.datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M")


def hours(seconds: float | None) -> str:
    """``12.3 h``; ``-`` for what is not known."""
    if seconds is None:
        return "-"
    value = seconds / 3600.0
    return f"{value:.0f} h" if value >= 100 else f"{value:.1f} h" if value >= 10 else f"{value:.2f} h"


def percent(share: float | None) -> str:
    """``12.5 %``; ``-`` for what is not known."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _text(text: Any) -> str:
    return html.escape(plain(str(text), kept="\n\t"), quote=True)


def best_of(policies: Sequence[Mapping[str, Any]], key: str) -> set[int]:
    """Which have the best value, the lowest, to what is shown of it."""
    values = [p.get(key) for p in policies]
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return set()
    best = min(known)
    return {i for i, v in enumerate(values) if v is not None and abs(v - best) <= 1e-3 * abs(best)}
