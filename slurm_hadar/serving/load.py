"""Load on a model server: open loop, by intended times, so that a slow server cannot hide behind waiting clients."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import numpy as np

from slurm_hadar.errors import ServingError
from slurm_hadar.listening import room_for
from slurm_hadar.serving.trace import Intended

__all__ = ["LoadResult", "Sent", "run_load"]

_PATIENCE = 10.0  # deadlines after which nobody waits any more
_LEAST_S = 5.0
_FILES = 100  # beyond those of connections
_FULL = (errno.EMFILE, errno.ENFILE)


@dataclass(slots=True)
class Sent:
    """``latency_s``: from the intended time on; ``status``: of HTTP, 0 where there was no answer."""

    intended: Intended
    lag_s: float = 0.0
    latency_s: float = float("inf")
    status: int = 0
    full: bool = False  # no file could be opened to send it

    @property
    def on_time(self) -> bool:
        """Whether it was answered with success, within its deadline."""
        return self.status == 200 and self.latency_s <= self.intended.deadline_s


@dataclass
class LoadResult:
    """Of all requests, in the order in which they were intended. ``lasted_s``: until the last was intended."""

    sent: list[Sent] = field(default_factory=list)
    lasted_s: float = 0.0

    def summary(self) -> dict[str, Any]:
        """What ``--json`` writes. ``sending_lag_ms_p99``: how late the generator was; latencies count it in."""
        return {
            **_figures(self.sent),
            "goodput_per_s": self._goodput_per_s(),
            "sending_lag_ms_p99": float(np.percentile([s.lag_s for s in self.sent], 99)) * 1e3,
            "by_application": {
                name: _figures([s for s in self.sent if s.intended.application == name])
                for name in sorted({s.intended.application for s in self.sent})
            },
        }

    def _goodput_per_s(self) -> float:
        """Until the last was intended, or answered in time, if that was later: all may be intended at once."""
        ended = [s.intended.at_s + s.latency_s for s in self.sent if s.on_time]
        return len(ended) / max(self.lasted_s, *ended) if ended else 0.0


def _figures(sent: Sequence[Sent]) -> dict[str, Any]:
    answered = [s.latency_s * 1e3 for s in sent if s.status == 200]
    return {
        "requests": len(sent),
        "finish_rate": sum(s.on_time for s in sent) / len(sent),
        "refused": sum(s.status >= 400 for s in sent),
        "unanswered": sum(s.status == 0 for s in sent),
        "latency_p50_ms": float(np.percentile(answered, 50)) if answered else None,
        "latency_p99_ms": float(np.percentile(answered, 99)) if answered else None,
    }


def run_load(
    url: str,
    model: str,
    intended: Sequence[Intended],
    examples: Mapping[str, Sequence[Mapping[str, Any]]],
    token: str | None = None,
    certificates: str | None = None,
) -> LoadResult:
    """Send each at its time, with one of its application's example inputs. Raises ServingError for an application
    without examples, and where this process may not open as many connections as it takes: that is no fault of the
    server's."""
    missing = {i.application for i in intended} - examples.keys()
    if missing:
        known = ", ".join(sorted(examples))
        raise ServingError(f"the model has no example of application {min(missing)!r}; it has {known}")
    dice = random.Random("examples 0")
    bodies = [_body(dice.choice(list(examples[i.application])), i) for i in intended]
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    trusted = ssl.create_default_context(cafile=certificates) if url.startswith("https:") else False
    room_for(len(intended) + _FILES)  # all may wait at once
    result = asyncio.run(
        _send_all(
            f"{url.rstrip('/')}/v2/models/{quote(model, safe='')}/infer", list(intended), bodies, headers, trusted
        )
    )
    if full := sum(sent.full for sent in result.sent):
        raise ServingError(
            f"{full} of {len(intended)} requests could not be sent: this process may not open as many files; raise the "
            "limit (ulimit -n), or lower the rate"
        )
    return result


def _body(example: Mapping[str, Any], intended: Intended) -> bytes:
    parameters = {"application": intended.application, "deadline_ms": intended.deadline_s * 1e3}
    return json.dumps({"inputs": example["inputs"], "parameters": parameters}).encode()


async def _send_all(
    url: str, intended: list[Intended], bodies: list[bytes], headers: dict[str, str], trusted: ssl.SSLContext | bool
) -> LoadResult:
    connector = aiohttp.TCPConnector(limit=0, ssl=trusted)
    result = LoadResult([Sent(i) for i in intended], intended[-1].at_s)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session, asyncio.TaskGroup() as group:
        began = time.perf_counter()
        for sent, body in zip(result.sent, bodies, strict=True):
            ahead_s = sent.intended.at_s - (time.perf_counter() - began)
            if ahead_s > 0:
                await asyncio.sleep(ahead_s)
            group.create_task(_send(session, url, sent, body, began))
    return result


async def _send(session: aiohttp.ClientSession, url: str, sent: Sent, body: bytes, began: float) -> None:
    sent.lag_s = max(0.0, time.perf_counter() - began - sent.intended.at_s)
    wait = aiohttp.ClientTimeout(total=max(_LEAST_S, _PATIENCE * sent.intended.deadline_s))
    try:
        async with session.post(url, data=body, timeout=wait) as answer:
            await answer.read()
            sent.status = answer.status
    except (aiohttp.ClientError, TimeoutError) as error:  # status stays 0: unanswered
        sent.full = getattr(error, "errno", None) in _FULL
    sent.latency_s = time.perf_counter() - began - sent.intended.at_s
