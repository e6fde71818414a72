"""Who may look, and how."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from starlette.testclient import TestClient

from slurm_hadar.errors import ConfigError
from slurm_hadar.listening import address, read_token
from slurm_hadar.web import content as pages
from slurm_hadar.web.guard import COOKIE, HEADERS
from tests.profiles import examples

TOKEN = "0123456789abcdef-secret"
PAGES = ("/", "/queue", "/job/1", "/node/a100-1", "/timeline", "/ended", "/users", "/partitions", "/prices")
PATHS = (*PAGES, "/api/queue.json", "/style.css", "/live.js", "/icon.svg", "/nowhere")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_only_looking_is_allowed(client: TestClient, method: str) -> None:
    """Whatever could change something is refused before anything is read."""
    for path in ("/", "/queue", "/api/queue.json", "/healthz"):
        answer = client.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_a_body(client: TestClient) -> None:
    """Monitoring may ask so."""
    answer = client.head("/queue")

    assert answer.status_code == 200 and answer.content == b""


@pytest.mark.parametrize("path", [*PATHS, "/healthz"])
def test_every_answer_has_the_headers(client: TestClient, path: str) -> None:
    """No script but ours, nothing from elsewhere, no frames, no referrer: also where there is no such page."""
    answer = client.get(path)

    assert HEADERS.items() <= {k.title(): v for k, v in answer.headers.items()}.items() | {
        (name, answer.headers[name]) for name in HEADERS
    }
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert {value for key, value in policy.items() if value != "'none'"} == {"'self'"}  # nothing inline, no eval


def test_pages_ask_for_nothing_from_elsewhere(client: TestClient) -> None:
    """No address in any page leads to another host, and nothing is inline that the policy would refuse."""
    for path in PAGES:
        text = client.get(path).text
        assert "//" not in text.replace("<!doctype", "")
        assert "style=" not in text and "<style" not in text and "onclick" not in text
        assert re.findall("<script[^>]*>[^<]*", text) == ['<script src="/live.js" defer>']


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8641", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_another_name_for_this_host_is_refused(client: TestClient, host: str) -> None:
    """A site that points a name of its own to this address cannot read the pages in a visitor's browser."""
    assert client.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8641", "[::1]:8641", "[::1]"])
def test_names_of_this_host(client: TestClient, host: str) -> None:
    """However a browser on this host, or at the other end of an ssh tunnel, names it."""
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_shown(browse: Callable[..., TestClient], state: Path, path: str) -> None:
    """Not even which pages there are; a wrong token or cookie is as good as none."""
    client = browse(state / "journal.db", TOKEN)

    for given in (
        {}, {"headers": {"authorization": "Bearer wrong"}}, {"params": {"token": "wrong"}},
        {"headers": {"authorization": f"Basic {TOKEN}"}}, {"headers": {"cookie": f"{COOKIE}={TOKEN}"}},
        {"params": {"token": "ä" * 20}}, {"headers": {"authorization": "Bearer"}},
    ):  # fmt: skip
        answer = client.get(path, **given)
        assert answer.status_code == 401 and "needs its token" in answer.text


def test_the_token_as_a_header(browse: Callable[..., TestClient], state: Path) -> None:
    """For scripts; any name of the host will do."""
    client = browse(state / "journal.db", TOKEN)
    headers = {"authorization": f"bearer {TOKEN}", "host": "head.example:8641"}

    assert client.get("/api/queue.json", headers=headers).status_code == 200


def test_the_token_in_an_address_becomes_a_cookie(browse: Callable[..., TestClient], state: Path) -> None:
    """It leaves the address at once, and the cookie is neither the token nor open to scripts or other sites."""
    client = browse(state / "journal.db", TOKEN)

    answer = client.get("/queue", params={"token": TOKEN, "user": "ann"}, follow_redirects=False)

    assert answer.status_code == 303 and answer.headers["location"] == "/queue?user=ann"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert client.get("/queue").status_code == 200  # with the cookie alone
    other = browse(state / "journal.db", TOKEN + "2", cookies=dict(client.cookies))
    assert other.get("/queue").status_code == 401


def test_the_redirect_stays_on_this_host(browse: Callable[..., TestClient], state: Path) -> None:
    """An address that begins with two slashes is not followed to another host."""
    client = browse(state / "journal.db", TOKEN)

    answer = client.get(f"http://localhost:8641//evil.example/?token={TOKEN}", follow_redirects=False)

    assert answer.headers["location"].startswith("/evil.example")


def test_monitoring_needs_no_token(browse: Callable[..., TestClient], state: Path) -> None:
    """``/healthz`` says nothing about jobs."""
    assert set(browse(state / "journal.db", TOKEN).get("/healthz").json()) == {
        "status",
        "controller",
        "last_round_age_s",
        "missed_rounds",
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:8641", ("127.0.0.1", 8641)), ("localhost:1", ("localhost", 1)), ("[::1]:80", ("::1", 80)),
     ("127.9.9.9:65535", ("127.9.9.9", 65535))],
)  # fmt: skip
def test_addresses_of_this_host_need_no_token(text: str, found: tuple[str, int]) -> None:
    """Loopback in all its forms."""
    assert address(text, has_token=False) == found


@pytest.mark.parametrize("text", ["0.0.0.0:8641", "[::]:8641", "10.1.2.3:80", "head.example:80", "127.0.0.1.nip.io:80"])
def test_other_addresses_need_a_token(text: str) -> None:
    """Refused without, accepted with one."""
    with pytest.raises(ConfigError, match="--token-file"):
        address(text, has_token=False)
    assert address(text, has_token=True)[1] in (80, 8641)


@pytest.mark.parametrize("text", ["", "8641", "127.0.0.1", "127.0.0.1:", "h:x", ":80", "h:70000", "h:-1", "h:²"])
def test_an_address_that_is_none(text: str) -> None:
    """One line with an example."""
    with pytest.raises(ConfigError, match="HOST:PORT"):
        address(text, has_token=True)


def test_token_files(tmp_path: Path) -> None:
    """Long enough, readable by its owner alone, and there."""
    file = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(file)
    for content in ("", "short", "x" * 10 + "\n", "ä" * 20, "\x07" * 20):
        file.write_text(content)
        file.chmod(0o600)
        with pytest.raises(ConfigError, match="at least 16 characters"):
            read_token(file)
    file.write_text(TOKEN + "\n# more\n")
    assert read_token(file) == TOKEN
    os.chmod(file, 0o640)  # noqa: PTH101 - as an administrator would
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(file)


NUMBERS = ("page", "per_page")
WORDS = ("user", "partition", "state", "type", "text", "sort", "desc", "span", "token", "colour", "tasks", "final",
         "other")  # fmt: skip
SAID = (
    st.text() | st.from_regex(r"-?[0-9]{1,5000}", fullmatch=True) | st.sampled_from(["9" * 5000, "0", "%", "\0", "1e9"])
)


def _has_the_headers(answer: Any) -> bool:
    return all(answer.headers.get(name) == value for name, value in HEADERS.items())


@pytest.mark.thorough
@examples(150)
@hypothesis.given(
    path=st.sampled_from(
        [*PATHS, "/api/timeline.json", "/api/prices.json", "/api/ended.json", "/api/node/x.json", "/healthz"]
    ),
    query=st.dictionaries(st.sampled_from(NUMBERS + WORDS), SAID, max_size=4) | st.text(max_size=60),
)
def test_no_query_is_a_defect(client: TestClient, path: str, query: Any) -> None:
    """Whatever is asked is answered, or refused for its length, always with the headers."""
    answer = client.get(path, params=query)

    there = {"/nowhere": {404}, "/job/1": {200, 404}, "/api/node/x.json": {404}}.get(path, {200})
    assert answer.status_code in {*there, 414}
    assert _has_the_headers(answer)


@pytest.mark.parametrize("digits", [9, 10, 1000, 5000])
def test_a_page_of_many_digits(client: TestClient, digits: int) -> None:
    """Beyond the last page there is nothing; what is no page number counts as not said."""
    for path in ("/queue", "/timeline", "/api/queue.json"):
        answer = client.get(path, params={"page": "9" * digits, "per_page": "9" * min(digits, 900)})
        assert answer.status_code == (414 if digits > 2000 else 200) and _has_the_headers(answer)


def test_a_defect_has_the_headers_too(
    browse: Callable[..., TestClient], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so have all other refusals."""
    client = browse(state / "journal.db", raise_server_exceptions=False)
    monkeypatch.setattr(pages, "status", lambda *_: 1 / 0)

    answers = [client.get("/"), client.get("/nowhere"), client.post("/"), client.get("/", headers={"host": "x"})]
    answers.append(client.get("/" + "x" * 3000))

    assert [a.status_code for a in answers] == [500, 404, 405, 421, 414]
    assert all(map(_has_the_headers, answers))


def test_what_is_no_http_is_refused_with_the_headers_too(state: Path) -> None:
    """By the server itself, before any of our code sees it."""
    told: list[str] = []
    code = (
        "from pathlib import Path\nfrom slurm_hadar.config import load\nfrom slurm_hadar.web.app import create_app\n"
        "from slurm_hadar.web.serve import serve\n"
        f"app = create_app(Path({str(state / 'journal.db')!r}), load())\n"
        "serve(app, '127.0.0.1', 0, lambda address: print(address, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rstrip("/\n").rpartition(":")[2])
            for start in (b"GET /queue?text=\xff HTTP/1.1", b"nonsense"):
                with socket.create_connection(("127.0.0.1", port)) as peer:
                    peer.sendall(start + b"\r\nHost: localhost\r\n\r\n")
                    told.append(b"".join(iter(lambda: peer.recv(65536), b"")).decode())
        finally:
            server.terminate()

    for answer in told:
        assert answer.startswith("HTTP/1.1 400 ")
        assert all(f"{name}: {value}\r\n".lower() in answer.lower() for name, value in HEADERS.items())
