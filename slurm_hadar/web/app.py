"""The pages and their JSON. Every answer reads the journal anew, and nothing is kept between two of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slurm_hadar import __version__
from slurm_hadar.config import Config
from slurm_hadar.controller.journal import Reader, ReadOnlyJournal
from slurm_hadar.controller.view import TIERS
from slurm_hadar.controller.words import about, clock, place, span
from slurm_hadar.errors import StoreError
from slurm_hadar.model import Placement
from slurm_hadar.simulator.page import STYLE, hours, percent
from slurm_hadar.simulator.plots import Look
from slurm_hadar.web import content, drawing
from slurm_hadar.web.guard import Guard

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
        pages: dict[str, tuple[str, str, _Content]] = {
            "/": ("/api/overview.json", "overview.html", lambda j, r: content.overview(j, self._config, self._now())),
            "/queue": ("/api/queue.json", "queue.html", lambda j, r: content.queue(j, r.query_params)),
            "/job/{job_id}": (
                "/api/job/{job_id}.json", "job.html", lambda j, r: content.job(j, r.path_params["job_id"])
            ),
            "/timeline": (
                "/api/timeline.json", "timeline.html", lambda j, r: content.timeline(j, r.query_params, self._now())
            ),
            "/prices": (
                "/api/prices.json", "prices.html", lambda j, r: content.prices(j, r.query_params, self._now())
            ),
        }  # fmt: skip
        found = []
        for path, (api, template, say) in pages.items():
            found += [Route(path, self._page(template, say)), Route(api, self._data(say))]
        return [
            *found,
            Route("/healthz", self._data(lambda j, r: content.health(j, self._config, self._now()))),
            Route("/style.css", lambda request: Response(style_sheet(), media_type="text/css")),
            Route("/icon.svg", lambda request: Response(_ICON, media_type="image/svg+xml")),
        ]

    def _page(self, template: str, say: _Content) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            with ReadOnlyJournal(self._path) as journal:
                found = say(journal, request)
                status = content.status(journal, self._config, self._now())
            if found is None:
                raise HTTPException(404, _UNKNOWN_JOB)
            return self.render(template, request, found=found, beat=status)

        return answer

    def _data(self, say: _Content) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            with ReadOnlyJournal(self._path) as journal:
                found = say(journal, request)
            if found is None:
                raise HTTPException(404, _UNKNOWN_JOB)
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
        if request.url.path.startswith("/api/") or request.url.path == "/healthz":
            return JSONResponse({"error": words}, status)
        return self.render("failed.html", request, status, words=words, code=status, beat=None)


_UNKNOWN_JOB = "this job is not known to the controller; is the id right (array tasks: 123_4)?"
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
    """The look of our pages, with the colours of our pictures for jobs and GPU types."""
    light, dark = Look.of(False), Look.of(True)
    names = range(drawing.COLOURS)
    colours = ":root{" + "".join(f"--c{i}:{light.colour(i)};" for i in names) + f"--other:{light.other}}}"
    colours += "@media (prefers-color-scheme:dark){:root{"
    colours += "".join(f"--c{i}:{dark.colour(i)};" for i in names) + f"--other:{dark.other}}}}}"
    classes = "".join(f".c{i}{{background:var(--c{i});fill:var(--c{i});stroke:var(--c{i})}}" for i in names)
    return STYLE + colours + classes + (_HERE / "static" / "style.css").read_text()


def _templates() -> jinja2.Environment:
    """Everything that is put into a page is escaped, whatever the template's name."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    found.filters.update(
        about=about, clock=clock, span=span, hours=hours, percent=percent, colour=drawing.job_colour, number=_number,
        place=lambda held: place(Placement.of(held or {})),
    )  # fmt: skip
    found.globals.update(gantt=drawing.gantt, curves=drawing.curves, link=_link, SPANS=content.SPANS, TIERS=TIERS)
    return found


def _finite(value: Any) -> Any:
    """The same with None for numbers that are infinite or none."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _link(query: Mapping[str, str], **changes: Any) -> str:
    """This page's address with some settings changed; those that are empty are left out."""
    settings = {**dict(query), **changes}
    return "?" + urlencode({key: value for key, value in settings.items() if value not in ("", None)})
