"""The server's addresses: the Open Inference Protocol (version 2), metrics, status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slurm_hadar import __version__
from slurm_hadar.errors import ServingError
from slurm_hadar.listening import asked_locally, bearer_is
from slurm_hadar.serving.server.accepted import Accepted, Answer
from slurm_hadar.serving.server.desk import Desk
from slurm_hadar.serving.server.metrics import ServingMetrics
from slurm_hadar.serving.server.model import ModelInfo
from slurm_hadar.serving.server.protocol import encode_in_pieces, read_request
from slurm_hadar.serving.tensors import as_json

__all__ = ["Guard", "create_app"]

_BODY_S = 10.0
_LONG = 16 << 10  # bytes
_JSON = "application/json"


class Guard:
    """Around the application: a token where there is one, else only who asks for this host by its own name. Health and
    metadata of the server itself are for everyone."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/v2/health/"):
            headers = Headers(scope=scope)
            if self._token is None:
                allowed = asked_locally(headers.get("host", ""))
                refusal = _error(421, "ask for this server as localhost, or start it with --token-file")
            else:
                allowed = bearer_is(headers.get("authorization", ""), self._token)
                refusal = _error(401, "this server needs its token: send 'Authorization: Bearer ...'")
            if not allowed:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def create_app(desk: Desk, metrics: ServingMetrics, most_bytes: int, token: str | None = None) -> ASGIApp:
    """``desk`` is started and closed with the application. ``most_bytes``: of one request's body."""
    routes = _Routes(desk, metrics, most_bytes)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        desk.start()
        try:
            yield
        finally:
            desk.close()

    return Guard(Starlette(routes=routes.all(), lifespan=lifespan), token)


def _error(status: int, message: str) -> Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": message}, status, headers=headers)


class _Routes:
    def __init__(self, desk: Desk, metrics: ServingMetrics, most_bytes: int) -> None:
        self._desk, self._metrics, self._most_bytes = desk, metrics, most_bytes

    def all(self) -> list[Route]:
        model = "/v2/models/{model}"
        of_model: dict[str, Callable[[Request, ModelInfo], Response]] = {
            "": lambda _r, info: JSONResponse(info.metadata()),
            "/ready": lambda _r, info: self._health(name=info.name),
            "/examples": self._examples,
        }
        found = [Route(f"{model}{v}/infer", self._infer, methods=["POST"]) for v in ("", "/versions/{version}")]
        for path, answer in of_model.items():
            found += [Route(f"{model}{v}{path}", self._of_model(answer)) for v in ("", "/versions/{version}")]
        return [
            *found,
            Route("/v2", lambda _r: JSONResponse({"name": "slurm_hadar", "version": __version__, "extensions": []})),
            Route("/v2/health/live", lambda _r: JSONResponse({"live": True})),
            Route("/v2/health/ready", lambda _r: self._health()),
            Route("/metrics", lambda _r: Response(self._metrics.text(self._desk.queued), media_type="text/plain")),
            Route("/status", lambda _r: JSONResponse(self._desk.status())),
        ]

    def _health(self, **of: str) -> Response:
        ready = self._desk.ready
        return JSONResponse({**of, "ready": ready}, 200 if ready else 503)

    def _info(self, request: Request) -> ModelInfo:
        if not self._desk.infos:
            raise ServingError("no worker is ready yet", 503)
        name = request.path_params["model"]
        info = self._desk.infos.get(name)
        if info is None or request.path_params.get("version", "1") != "1":
            raise ServingError(f"there is no such model or version; models: {', '.join(self._desk.infos)}", 404)
        return info

    def _of_model(self, answer: Callable[[Request, ModelInfo], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            try:
                return answer(request, self._info(request))
            except ServingError as error:
                return _error(error.status, str(error))

        return checked

    def _examples(self, _request: Request, info: ModelInfo) -> Response:
        """For load generators: requests of each application, as infer takes them."""
        return JSONResponse(
            [
                {"inputs": as_json(inputs), "parameters": {"application": application}}
                for application, inputs in self._desk.examples(info.name)
            ]
        )

    async def _infer(self, request: Request) -> Response:
        try:
            info = self._info(request)
            body = await self._body(request)
            asked = read_request(body, info)
            accepted = self._desk.accept(info.name, asked, len(body))
            answer = await self._until_gone(request, accepted)
        except ServingError as error:
            return _error(error.status, str(error))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        trace = partial(self._desk.answered, accepted, answer)
        pieces = []
        for piece in encode_in_pieces(info, asked.identity, asked.of(answer.outputs), trace):
            pieces.append(piece)
            if len(piece) > _LONG:
                await asyncio.sleep(0)  # others are read and answered meanwhile
        return Response(b"".join(pieces), media_type=_JSON)

    async def _until_gone(self, request: Request, accepted: Accepted) -> Answer:
        """The answer, unless the client goes before: then its place in the queue is free."""
        watching = asyncio.create_task(_cancel_when_gone(request, accepted.future))
        try:
            return await accepted.future
        except asyncio.CancelledError:
            if accepted.future.cancelled() and not _is_ending():
                raise ClientDisconnect from None
            raise
        finally:
            watching.cancel()
            self._desk.release(accepted)

    async def _body(self, request: Request) -> bytes:
        """Raises ServingError for one that is too large, or comes too slowly."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._most_bytes:
            raise ServingError(f"the body has more than {self._most_bytes} bytes (--max-body)", 413)
        parts, total = [], 0
        try:
            async with asyncio.timeout(_BODY_S):
                async for part in request.stream():
                    total += len(part)
                    if total > self._most_bytes:
                        raise ServingError(f"the body has more than {self._most_bytes} bytes (--max-body)", 413)
                    parts.append(part)
        except TimeoutError:
            raise ServingError(f"the body did not come within {_BODY_S:g} s", 408) from None
        return b"".join(parts)


async def _cancel_when_gone(request: Request, future: asyncio.Future[Answer]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    future.cancel()


def _is_ending() -> bool:
    """Whether it is this task that is cancelled, and not what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
