"""The pages and their JSON. Every answer reads the journal anew, and nothing is kept between two of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slurm_hadar import __version__
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.savings import gpu_time, headline, share
from slurm_hadar.controller.answers.view import TIERS
from slurm_hadar.controller.journal import ENDED_SEARCHED, MOST_GROUPS, Reader, ReadOnlyJournal
from slurm_hadar.controller.words import about, clock, done, gpus, outrun, place, plain, sharing
from slurm_hadar.errors import StoreError
from slurm_hadar.model import Placement
from slurm_hadar.pages.html import STYLE, hours
from slurm_hadar.pages.plots import Look
from slurm_hadar.units import between, counted, span
from slurm_hadar.web import content, drawing, lists
from slurm_hadar.web.colours import PALETTE
from slurm_hadar.web.guard import Guard
from slurm_hadar.web.windows import SPANS

__all__ = ["create_app"]

_HERE = Path(__file__).parent
_Content = Callable[[Reader, Request], dict[str, Any] | None]


class Dashboard:
    """Answers requests from one journal. ``clock`` gives the time in epoch seconds."""

    def __init__(self, path: Path, config: Config, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._config = config
        self._now = now
        self._templates = _templates()

    def routes(self) -> list[Route]:
        """One entry for each page, and the same with ``/api`` and ``.json`` around it for its data."""
        pages: dict[str, tuple[str, _Content]] = {
            "/": ("overview", lambda j, r: content.overview(j, r.query_params, self._config, self._now())),
            "/queue": ("queue", lambda j, r: lists.queue(j, r.query_params, folds=not _wants_data(r))),
            "/job/{name}": ("job", lambda j, r: content.job(j, r.path_params["name"])),
            "/node/{name}": ("node", lambda j, r: content.node(j, r.path_params["name"], r.query_params, self._now())),
            "/timeline": ("timeline", lambda j, r: content.timeline(j, r.query_params, self._now())),
            "/ended": ("ended", lambda j, r: lists.ended(j, r.query_params)),
            "/users": ("users", lambda j, _r: lists.users(j, self._config.fairness.half_life_h * 3600.0, self._now())),
            "/partitions": ("partitions", lambda j, _r: lists.partitions(j)),
            "/prices": ("prices", lambda j, r: content.prices(j, r.query_params, self._now())),
        }
        found = []
        for path, (name, say) in pages.items():
            data = f"/api/{name}/{{name}}.json" if "{name}" in path else f"/api/{name}.json"
            found += [Route(path, self._page(f"{name}.html", say)), Route(data, self._data(say))]
        return [
            *found,
            Route("/healthz", self._data(lambda j, _r: content.health(j, self._config, self._now()))),
            Route("/style.css", lambda _request: Response(style_sheet(), media_type="text/css")),
            Route("/live.js", lambda _request: Response(_script(), media_type="text/javascript")),
            Route("/icon.svg", lambda _request: Response(_ICON, media_type="image/svg+xml")),
        ]

    def _page(self, template: str, say: _Content) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            mark = self._mark()
            if request.headers.get("if-none-match") == mark:
                return Response(status_code=304)
            with ReadOnlyJournal(self._path) as journal:
                found = say(journal, request)
                status = content.status(journal, self._config, self._now())
            if found is None:
                raise HTTPException(404, _unknown(request))
            page = self.render(template, request, found=found, beat=status)
            page.headers["ETag"] = mark
            return page

        return answer

    def _mark(self) -> str:
        """Changes with all that is written to the journal, and from time to time, since pages tell how old things are:
        as long as it is the same, a page that keeps itself up to date costs next to nothing."""
        parts = [__version__, str(int(self._now() // _SAME_S))]
        for file in (self._path, self._path.with_name(self._path.name + "-wal")):
            with suppress(OSError):  # what is wrong with it is told when it is opened
                stat = file.stat()
                parts.append(f"{stat.st_ino}.{stat.st_size}.{stat.st_mtime_ns}")
        return f'"{"-".join(parts)}"'

    def _data(self, say: _Content) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            with ReadOnlyJournal(self._path) as journal:
                found = say(journal, request)
            if found is None:
                raise HTTPException(404, _unknown(request))
            try:
                return JSONResponse(found)
            except ValueError:  # JSON has no infinite numbers, a price may be one
                return JSONResponse(_finite(found))

        return answer

    def render(self, template: str, request: Request, status: int = 200, **given: Any) -> Response:
        """A page by its template; ``given`` is what it shows."""
        text = self._templates.get_template(template).render(
            query=request.query_params, path=request.url.path, now=self._now(), version=__version__, **given
        )
        return HTMLResponse(text, status)

    def failed(self, request: Request, error: Exception) -> Response:
        """One clear line: the journal cannot be read (503), the page does not exist, or we are at fault (500)."""
        if isinstance(error, HTTPException):
            status = error.status_code
            words = "There is no such page." if error.detail == "Not Found" else error.detail
        elif isinstance(error, StoreError):
            status, words = 503, str(error)
        else:  # its traceback is in the log
            status, words = 500, "This is a defect of the dashboard; the log of hadar web says more."
        if _wants_data(request):
            return JSONResponse({"error": words}, status)
        return self.render("failed.html", request, status, words=words, code=status, beat=None)


def _wants_data(request: Request) -> bool:
    return request.url.path.startswith("/api/") or request.url.path == "/healthz"


def _unknown(request: Request) -> str:
    """That there is none of this name, as a sentence."""
    if request.url.path.removeprefix("/api").startswith("/node/"):
        return "this node is not known to the controller; has it GPUs?"
    return "this job is not known to the controller; is the id right (array tasks: 123_4)?"


_SAME_S = 30.0  # so long a page may be shown as it is, where nothing is written
#: How Slurm says that a job has ended, and GONE where it forgot the job before we looked.
_FINALS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "GONE")
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0072b2"/>'
    '<path d="M3 5h6M3 8h10M3 11h4" stroke="#fff" stroke-width="2"/></svg>'
)


def create_app(path: Path, config: Config, token: str | None = None, now: Callable[[], float] = time.time) -> ASGIApp:
    """The dashboard over the journal ``path``, which need not exist yet. With ``token`` only who sends it may look."""
    dashboard = Dashboard(path, config, now)
    pages = Starlette(
        routes=dashboard.routes(),
        exception_handlers=dict.fromkeys((StoreError, HTTPException, Exception), dashboard.failed),
    )
    return Guard(pages, token)  # around all of it: Starlette answers defects outside of its middleware


@cache
def style_sheet() -> str:
    """The look of our pages, with the colours of our pictures for GPU types, and those of jobs and users."""
    light, dark = Look.of(False), Look.of(True)
    names = range(drawing.COLOURS)
    colours = ":root{" + "".join(f"--c{i}:{light.colour(i)};" for i in names) + f"--other:{light.other}}}"
    colours += "@media (prefers-color-scheme:dark){:root{"
    colours += "".join(f"--c{i}:{dark.colour(i)};" for i in names) + f"--other:{dark.other}}}}}"
    classes = "".join(f".c{i}{{background:var(--c{i});fill:var(--c{i});stroke:var(--c{i})}}" for i in names)
    classes += "".join(f".j{i}{{--of:{fill};--on:{text}}}" for i, (fill, text) in enumerate(PALETTE))
    return STYLE + colours + classes + (_HERE / "static" / "style.css").read_text()


@cache
def _script() -> str:
    return (_HERE / "static" / "live.js").read_text()


def _templates() -> jinja2.Environment:
    """Everything that is put into a page is escaped, whatever the template's name."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        finalize=_readable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters.update(
        about=about,
        clock=clock,
        span=span,
        hours=hours,
        number=_number,
        gib=_gib,
        gpu_time=gpu_time,
        headline=headline,
        share=share,
        done=done,
        gpus=gpus,
        outrun=outrun,
        sharing=sharing,
        place=lambda held: place(Placement.of(held or {})),
    )
    found.globals.update(
        cell=_cell,
        between=between,
        gantt=drawing.gantt,
        curves=drawing.curves,
        blocks=drawing.blocks,
        small_curve=drawing.small_curve,
        link=_link,
        SPANS=SPANS,
        TIERS=TIERS,
        FINALS=_FINALS,
        ENDED_SEARCHED=ENDED_SEARCHED,
        MOST_GROUPS=MOST_GROUPS,
        used_of=_used_of,
        waiting_of=lambda point: point["jobs"] - point["running"],
        gpus_said=lambda n: f"{counted(n, 'GPU')} in use",
        jobs_said=lambda n: f"{counted(n, 'job')} {'waits' if round(n) == 1 else 'wait'}",
    )
    return found


def _finite(value: Any) -> Any:
    """The same with None for numbers that are infinite or none."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _readable(value: Any) -> Any:
    """What goes into a page: text of users without what a reader does not see."""
    return plain(value, kept="\n\t") if isinstance(value, str) and not isinstance(value, Markup) else value


def _cell(title: str, value: object, kind: str = "") -> Markup:
    """A cell of a table. ``title`` stands beside it where tables become cards, and what says nothing is left out there;
    a macro would do as well, but takes most of the time of a page."""
    said = escape(_readable(value))
    kinds = f"{kind} nothing" if said in ("", "-") else kind
    return Markup(
        f'<td data-label="{title}" class="{kinds}">{said}</td>' if kinds else f'<td data-label="{title}">{said}</td>'
    )


def _used_of(gpu_type: str | None = None) -> Callable[[Mapping[str, Any]], float | None]:
    """Of a sample of the overview's trend, the GPUs in use, of a type or of all; None where it was not recorded."""

    def value(point: Mapping[str, Any]) -> float | None:
        use = point["use"]
        if gpu_type is not None:
            return float(use[gpu_type][0]) if gpu_type in use else None
        return float(sum(used for used, _ in use.values())) if use else None

    return value


def _gib(size: float) -> str:
    return f"{size / 2**30:,.0f} GiB"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _link(query: Mapping[str, str], **changes: Any) -> str:
    """This page's address with some settings changed; those that are empty are left out."""
    settings = {**dict(query), **changes}
    return "?" + urlencode({key: value for key, value in settings.items() if value not in ("", None)})
