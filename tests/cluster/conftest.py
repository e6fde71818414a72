"""Runs job_submit.lua in the Lua library that Slurm itself loads, with Slurm's side of it mocked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import install

SCRIPT = Path(__file__).resolve().parents[2] / "wrappers" / "job_submit.lua"

# Slurm's table: what the script logs and says is kept, formatted as Slurm does. A job description is a
# plain table; fields that this script must not touch would show up in it.
_MOCK = """
slurm = { SUCCESS = 0, ERROR = -1, said = {}, logged = {} }
function slurm.log_user(...) slurm.said[#slurm.said + 1] = string.format(...) end
function slurm.log_error(...) slurm.logged[#slurm.logged + 1] = string.format(...) end
function slurm.log_info(...) slurm.said[#slurm.said + 1] = string.format(...) end
"""
_DRIVER = """
local job, call, record, uid, rc = %s, "%s", %s, %d, nil
collectgarbage()
local began = os.clock()
if call == "submit" then rc = slurm_job_submit(job, {}, uid) else rc = slurm_job_modify(job, record, {}, uid) end
local out = { "rc=" .. rc, "cpu=" .. os.clock() - began }
for _, text in ipairs(slurm.said) do out[#out + 1] = "said=" .. text end
for _, text in ipairs(slurm.logged) do out[#out + 1] = "logged=" .. text end
for key, value in pairs(job) do
    if type(value) == "table" then
        for k, v in pairs(value) do out[#out + 1] = "env." .. k .. "=" .. tostring(v) end
    else
        out[#out + 1] = "job." .. key .. "=" .. tostring(value)
    end
end
return table.concat(out, "\\0")
"""


UNSET = 4294967294  # Slurm's, of a number that nobody gave


def submitted_job(**fields: Any) -> dict[str, Any]:
    """A job as it comes to the script."""
    return {"script": "#!/bin/sh", "min_nodes": UNSET, "max_nodes": UNSET, "begin_time": 0, **fields}


class Answer:
    """What the script did: its return code, what the user reads, what is logged, and the job as it left it."""

    def __init__(self, text: str) -> None:
        pairs = [part.partition("=")[::2] for part in text.split("\0")]
        self.accepted = ("rc", "0") in pairs
        self.cpu_s = float(dict(pairs)["cpu"])
        self.said = [v for k, v in pairs if k == "said"]
        self.logged = [v for k, v in pairs if k == "logged"]
        self.job = {k[4:]: v for k, v in pairs if k.startswith("job.")}
        self.environment = {k[4:]: v for k, v in pairs if k.startswith("env.")}


class Lua:
    """A Lua 5.1 state with the script loaded."""

    def __init__(self, library: str, prelude: str) -> None:
        self._lib = ctypes.CDLL(library)
        self._lib.luaL_newstate.restype = ctypes.c_void_p
        self._lib.lua_tolstring.restype = ctypes.c_void_p
        self._state = ctypes.c_void_p(self._lib.luaL_newstate())
        self._lib.luaL_openlibs(self._state)
        self._run(_MOCK)
        self._run(SCRIPT.read_text())
        if prelude:
            self._run(prelude)

    def _run(self, code: str) -> str:
        raw = code.encode("utf-8", "surrogateescape")
        failed = self._lib.luaL_loadbuffer(self._state, raw, ctypes.c_size_t(len(raw)), b"=script")
        failed = failed or self._lib.lua_pcall(self._state, 0, 1, 0)
        length = ctypes.c_size_t()
        pointer = self._lib.lua_tolstring(self._state, -1, ctypes.byref(length))
        text = ctypes.string_at(pointer, length.value).decode("utf-8", "surrogateescape") if pointer else ""
        self._lib.lua_settop(self._state, -2)
        if failed:
            raise AssertionError(f"Lua: {text}")
        return text

    def call(self, what: str, *, present: str = "", uid: int = 1000, **job: Any) -> Answer:
        """Call ``submit`` or ``modify`` with a job description; ``modify`` as ``uid``, of a job whose comment is
        ``present``."""
        self._run("slurm.said, slurm.logged = {}, {}")
        return Answer(self._run(_DRIVER % (_literal(job), what, _literal({"comment": present}), uid)))


@dataclass(frozen=True)
class Endless:
    """A long text, made inside Lua: ``before``, then ``piece`` again and again up to ``size`` bytes, then ``after``."""

    piece: str
    size: int
    before: str = ""
    after: str = ""

    def literal(self) -> str:
        before, piece, after = map(_literal, (self.before, self.piece, self.after))
        return f"({before} .. ({piece}):rep({self.size}):sub(1, {self.size}) .. {after})"


def _literal(value: Any) -> str:
    if isinstance(value, Endless):
        return value.literal()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"[{_literal(k)}] = {_literal(v)}" for k, v in value.items()) + " }"
    if isinstance(value, str):
        return '"' + "".join(f"\\{byte:03d}" for byte in value.encode("utf-8", "surrogateescape")) + '"'
    return str(value)


@pytest.fixture(scope="session")
def make_lua() -> Callable[..., Lua]:
    """Makes a state of its own, with ``prelude`` run after the script."""
    found = install.ensure()  # brings Lua's library with it
    unpacked = next(found.root.glob("usr/lib/*/liblua5.1.so.0"), None) if found.root else None
    return lambda prelude="": Lua(str(unpacked or "liblua5.1.so.0"), prelude)


@pytest.fixture(scope="session")
def lua(make_lua: Callable[..., Lua]) -> Lua:
    """The script as it is installed."""
    return make_lua()
