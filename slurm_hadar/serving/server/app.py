"""The server's addresses: the Open Inference Protocol (version 2), metrics, status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slurm_hadar import __version__
from slurm_hadar.errors import ServingError
from slurm_hadar.listening import asked_locally, bearer_is
from slurm_hadar.serving.server.accepted import Accepted, Answer
from slurm_hadar.serving.server.dispatcher import Dispatcher
from slurm_hadar.serving.server.metrics import ServingMetrics
from slurm_hadar.serving.server.model import ModelInfo
from slurm_hadar.serving.server.protocol import binary_data, encode_in_pieces, read_request
from slurm_hadar.serving.tensors import JSON_BYTES, as_json

__all__ = ["HEALTH", "Guard", "LastAnswers", "create_app"]

HEALTH = "/v2/health/"  # told to everyone

_BODY_S = 10.0
_LONG = 16 << 10  # bytes
_JSON = "application/json"
_BINARY = "application/octet-stream"
_SERVER = {"name": "slurm_hadar", "version": __version__, "extensions": ["binary_tensor_data"]}
_LONGEST_LENGTH = 20  # digits


class Guard:
    """Around the application: a token where there is one, else only who asks for this host by its own name. Health and
    metadata of the server itself are for everyone."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(HEALTH):
            refusal = self._refusal(Headers(scope=scope))
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._token is None:
            if asked_locally(headers.get("host", "")):
                return None
            return _error(421, "ask for this server as localhost, or start it with --token-file")
        if bearer_is(headers.get("authorization", ""), self._token):
            return None
        return _error(401, "this server needs its token: send 'Authorization: Bearer ...'")


class NoUpgrades:
    """Around the application: refuses a request with a body that asks for another protocol, as clients that would
    rather speak HTTP/2 do (``Upgrade: h2c``), and ends its connection: httptools leaves its body out, and takes what
    comes of it later for further requests. One without a body is answered by HTTP/1.1."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        if "upgrade" in headers and {"content-length", "transfer-encoding"} & set(headers):
            refusal = _error(400, "this server speaks HTTP/1.1 alone: send a request with a body without 'Upgrade'")
            refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class LastAnswers:
    """Around the application: when the server ends, each answer is the last one on its connection, so that no client
    sends a request on one that is about to be closed."""

    def __init__(self, app: ASGIApp, dispatcher: Dispatcher) -> None:
        self._app, self._dispatcher = app, dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start" and self._dispatcher.draining:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, sent)


def create_app(dispatcher: Dispatcher, metrics: ServingMetrics, most_bytes: int, token: str | None = None) -> ASGIApp:
    """``dispatcher`` is started and closed with the application. ``most_bytes``: of one request's body."""
    routes = _Routes(dispatcher, metrics, most_bytes)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        dispatcher.start()
        try:
            yield
        finally:
            dispatcher.close()

    app = Starlette(routes=routes.all(), lifespan=lifespan, exception_handlers=_HANDLERS)
    return LastAnswers(NoUpgrades(Guard(app, token)), dispatcher)


def _error(status: int, message: str) -> Response:
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse({"error": message}, status, headers=headers)


async def _no_such_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return _error(error.status_code, f"{request.url.path} is not served here")
    allowed = (error.headers or {}).get("Allow", "")
    response = _error(405, f"{request.method} of {request.url.path} is not served; {allowed} is")
    response.headers["Allow"] = allowed
    return response


async def _failed(_request: Request, _: Exception) -> Response:
    return _error(500, "the server has failed on this request; its log says how")


_HANDLERS = {HTTPException: _no_such_address, 500: _failed}


class _Routes:
    def __init__(self, dispatcher: Dispatcher, metrics: ServingMetrics, most_bytes: int) -> None:
        self._dispatcher, self._metrics, self._most_bytes = dispatcher, metrics, most_bytes

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
            Route("/v2", lambda _r: JSONResponse(_SERVER)),
            Route(f"{HEALTH}live", lambda _r: JSONResponse({"live": True})),
            Route(f"{HEALTH}ready", lambda _r: self._health()),
            Route(
                "/metrics", lambda _r: Response(self._metrics.text(self._dispatcher.queued), media_type="text/plain")
            ),
            Route("/status", lambda _r: JSONResponse(self._dispatcher.status())),
        ]

    def _health(self, **of: str) -> Response:
        ready = self._dispatcher.ready
        return JSONResponse({**of, "ready": ready}, 200 if ready else 503)

    def _info(self, request: Request) -> ModelInfo:
        if not self._dispatcher.infos:
            raise ServingError("no worker is ready yet", 503)
        name = request.path_params["model"]
        info = self._dispatcher.infos.get(name)
        if info is None or request.path_params.get("version", "1") != "1":
            raise ServingError(f"there is no such model or version; models: {', '.join(self._dispatcher.infos)}", 404)
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
        bodies = [
            {"inputs": as_json(inputs), "parameters": {"application": application}}
            for application, inputs in self._dispatcher.examples(info.name)
        ]
        try:
            return JSONResponse(bodies)
        except ValueError:  # of the encoder
            raise ServingError(f"examples of {info.name} are not finite: JSON has no such numbers", 501) from None

    async def _infer(self, request: Request) -> Response:
        try:
            info = self._info(request)
            json_bytes = _json_bytes(request)
            body = await self._body(request)
            asked = read_request(body, info, json_bytes)
            accepted = self._dispatcher.accept(info.name, asked, len(body))
            answer = await self._until_gone(request, accepted)
        except ServingError as error:
            return _error(error.status, str(error))
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        trace = partial(self._dispatcher.answered, accepted, answer)
        outputs, pieces = asked.of(answer.outputs), []
        for piece in encode_in_pieces(info, asked.identity, outputs, trace, asked.binary):
            pieces.append(piece)
            if len(piece) > _LONG:
                await asyncio.sleep(0)  # others are read and answered meanwhile
        if not asked.binary:
            return Response(b"".join(pieces), media_type=_JSON)
        headers = {JSON_BYTES: str(sum(map(len, pieces)))}
        content = b"".join((*pieces, *binary_data(outputs, asked.binary)))
        return Response(content, headers=headers, media_type=_BINARY)

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
            self._dispatcher.release(accepted)

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


def _json_bytes(request: Request) -> int | None:
    """How much of the body is JSON, where binary data follow it. Raises ServingError for what is no number, and for a
    body that is compressed, whose bytes are none of these."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise ServingError(f"Content-Encoding {coding[:20]!r} is not served: send the body as it is", 415)
    told = request.headers.get(JSON_BYTES)
    if told is None:
        return None
    if not (told.isascii() and told.isdigit() and len(told) <= _LONGEST_LENGTH):
        raise ServingError(f"{JSON_BYTES} must be a number of bytes, not {told[:20]!r}", 400)
    return int(told)


async def _cancel_when_gone(request: Request, future: asyncio.Future[Answer]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    future.cancel()


def _is_ending() -> bool:
    """Whether it is this task that is cancelled, and not what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
