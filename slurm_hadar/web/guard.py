"""Who may look, and how: methods, hosts, the token, and headers by which a page can do nothing but be shown."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_hadar.listening import asked_locally, bearer_is

__all__ = ["COOKIE", "HEADERS", "Guard"]

COOKIE = "slurm_hadar"
#: No script but our own file, nothing from elsewhere, never inside another site's page, and no trace of a token in a
#: referrer.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; "
    "img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_BYTES = 2048  # of a path, and of a query: no search is longer


class Guard:
    """Around the whole application.

    Parameters
    ----------
    app: what it guards.
    token: who does not send it is refused, but for ``/healthz``; None lets in everyone who can reach this host itself.
        Then the address that a browser asked for must be one of this host: else a foreign site could read the pages
        under a name of its own that leads here.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._token = token.encode() if token else None
        # what the browser keeps is no token: a cookie that leaks opens this dashboard only
        self._cookie = hmac.new(self._token, b"slurm_hadar web", hashlib.sha256).hexdigest() if self._token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope)
        await (answer or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not pass, or that brings the token for the first time; None if it may."""
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This dashboard only shows: GET and HEAD.\n", 405, headers={"Allow": "GET, HEAD"})
        if max(len(scope["path"]), len(scope["query_string"])) > _MOST_BYTES:
            return PlainTextResponse("This address is too long.\n", 414)
        if self._token is None:
            if not asked_locally(Headers(scope=scope).get("host", "")):
                return PlainTextResponse("Ask for this page as localhost, or start it with --token-file.\n", 421)
            return None
        if scope["path"] == "/healthz":
            return None
        return self._by_token(Request(scope))

    def _by_token(self, request: Request) -> Response | None:
        assert self._token is not None
        if bearer_is(request.headers.get("authorization", ""), self._token):
            return None
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._cookie.encode()):
            return None
        if self._matches(request.query_params.get("token", "")):
            return self._welcome(request)
        return PlainTextResponse(
            "This dashboard needs its token: open it once as /?token=..., or send it as 'Authorization: Bearer ...'.\n",
            401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _welcome(self, request: Request) -> Response:
        """Remember the browser, and take the token out of its address bar and history."""
        rest = [(k, v) for k, v in parse_qsl(request.url.query, keep_blank_values=True) if k != "token"]
        # one slash: an address that begins with two would lead to another host
        path = "/" + request.url.path.lstrip("/")
        answer = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self._cookie, httponly=True, samesite="strict", secure=secure, path="/")
        return answer

    def _matches(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode(), self._token)
