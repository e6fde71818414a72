"""job_submit.lua reads the same grammar of comments as slurm_hadar.comment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import comment
from slurm_hadar.errors import CommentError
from tests.cluster.conftest import submitted_job
from tests.profiles import examples


def _lua_accepts(lua: Any, text: str) -> bool:
    """By its grammar: as root changes it, who may write any key."""
    return lua.call("modify", comment=text, uid=0).accepted


def _python_accepts(text: str) -> bool:
    try:
        comment.parse(text)
    except CommentError:
        return False
    return True


GOOD = [
    "",
    " ",
    "\t\n",
    "model=resnet18",
    "model=resnet18,batch=128,steps=200000",
    "model=a.b_c-D9",
    "model=" + "a" * 64,
    "batch=1",
    "batch=" + "9" * 15,
    "gpus=2-8",
    "gpus=4",
    "gpus=4-4",
    "gpus=8+2+4",
    "gpus=2+2",
    "gpus=1+2+3+4+5+6+7+8",
    "gpus=1-9999",
    "nodes=1",
    "nodes=1-4",
    "nodes=4-4",
    "nodes=99999",
    "mix=never",
    "mix=gated",
    "mix=balanced",
    "graph=resnet50",
    "graph=gpt2-xl/pp4",
    "graph=gpt2-xl/mb8/tp2/dp2/pp9999",
    "graph=" + "a" * 64 + "/dp1",
    "graph=my.toml",
    "graph=/home/me/graphs/a+b@c_d-1.toml",
    "graph=../" + "a" * 247 + ".toml",
    "types=v100",
    "types=v100+p100+k80",
    "types=v100+v100",
    "retry=1",
    "retry=99",
    "mem=1g",
    "mem=80G",
    "mem=9999g",
    "prefer=a100-sxm4-80gb",
    "ckpt=yes,lose=no,pin=yes",
    "weight=0.001",
    "weight=1000",
    "weight=1000.000000000",
    "weight=000000000001",
    "restart=0",
    "restart=86400",
    "restart=0.5",
    "share=no",
    "share=1.01",
    "share=100",
    "share=2.5",
    "deadline=6h",
    "deadline=0s",
    "deadline=1.5d",
    "deadline=2026-11-20T18:00+00:00",
    "deadline=2026-11-20T18:00:01Z",
    "deadline=2026-11-20T18:00:01.123456-05:30",
    "deadline=2024-02-29T00:00Z",
    "deadline=2000-02-29T00:00Z",
    "deadline=1970-01-01T00:00Z",
    "deadline=2999-12-31T23:59Z",
    "deadline=3650d",
    "deadline=0315360000.000000000s",
    "period=500",
    "period=0.000000001s",
    "period=5m",
    "requeue_on_timeout=yes",
    "max_time=2d",
    "max_time=1.5h",
    "model=" + "a" * 64 + "\n" * (2048 - 6 - 70),
    "key=0123456789abcdef",
    "model=x ",
    "model=a,batch=2,steps=3,nodes=1-2,mix=gated,types=v,prefer=v,ckpt=yes,lose=no,pin=no,weight=2,deadline=6h,"
    "restart=4,key=0123456789abcdef",
]
BAD = [
    "x",
    "=",
    ",",
    "model",
    "model=",
    "=resnet",
    "model=x,",
    ",model=x",
    "model=x,,batch=2",
    "model=x,model=y",
    "Model=x",
    "modle=x",
    "model=a b",
    "model=a=b",
    "model=-x",
    "model=" + "a" * 65,
    "model=\u00e4",
    "batch=0",
    "batch=-1",
    "batch=1.5",
    "batch=01",
    "batch=" + "9" * 16,
    "batch=\uff11\uff12",
    "steps=1e6",
    "gpus=0",
    "gpus=8-2",
    "gpus=2-",
    "gpus=-8",
    "gpus=2-4-8",
    "gpus=2+4-8",
    "gpus=2+",
    "gpus=+2",
    "gpus=02",
    "gpus=10000",
    "gpus=1-10000",
    "gpus=1+2+3+4+5+6+7+8+8",
    "nodes=0",
    "nodes=4-1",
    "nodes=1-",
    "nodes=-1",
    "nodes=100000",
    "nodes=1-2-3",
    "nodes=1-02",
    "mix=both",
    "mix=NEVER",
    "graph=/pp4",
    "graph=gpt2-xl/",
    "graph=gpt2-xl/pp0",
    "graph=gpt2-xl/pp04",
    "graph=gpt2-xl/pp",
    "graph=gpt2-xl/xp4",
    "graph=gpt2-xl/pp4/pp4",
    "graph=gpt2-xl/pp10000",
    "graph=gpt2-xl/PP4",
    "graph=gpt2-xl//pp4",
    "graph=" + "a" * 65,
    "graph=.toml",
    "graph=a b.toml",
    "graph=a:b.toml",
    "graph=" + "a" * 251 + ".toml",
    "retry=0",
    "retry=100",
    "mem=0g",
    "mem=32",
    "mem=032g",
    "mem=1.5g",
    "mem=32gb",
    "mem=10000g",
    "types=v100+",
    "types=+v100",
    "types=v100++k80",
    "types=v100|k80",
    "ckpt=true",
    "pin=Yes",
    "weight=0",
    "weight=0.0001",
    "share=yes",
    "share=1",
    "share=1.00",
    "share=100.1",
    "share=",
    "share=-2",
    "weight=1000.1",
    "weight=.5",
    "weight=1.",
    "weight=1.0000000001",
    "weight=nan",
    "weight=0x10",
    "weight=1e2",
    "weight=1000000000000",
    "weight=0000000000001",
    "restart=86401",
    "deadline=6",
    "deadline=h",
    "deadline=6 h",
    "deadline=6w",
    "deadline=3650.000000001d",
    "deadline=99999999999s",
    "deadline=1.0000000001s",
    "deadline=1.s",
    "deadline=1969-12-31T23:59Z",
    "deadline=3000-01-01T00:00Z",
    "period=0",
    "period=0s",
    "period=0.0d",
    "period=" + "9" * 16,
    "period=" + "9" * 400,
    "period=" + "9" * 400 + "d",
    "period=315360001s",
    "requeue_on_timeout=1",
    "max_time=0s",
    "max_time=5",
    "max_time=3651d",
    "lease=100000",
    "asked=3/2/2/2",
    "asked=2/1/1",
    "asked=2/1/1/1/",
    "asked=2/1/1/1/" + "a" * 31,
    "asked=2/1/1/1/" + "A" * 32,
    "asked=2/1/1/1/" + "a" * 33,
    " " * 2043,
    "deadline=.5h",
    "deadline=2026-11-20",
    "deadline=2026-11-20T18:00",
    "deadline=2026-11-20T18:00+0000",
    "deadline=2026-11-20T18Z",
    "deadline=2026-11-20T24:00Z",
    "deadline=2026-11-20T18:60Z",
    "deadline=2026-11-20T18:00:60Z",
    "deadline=2026-11-20T18:00:00.1234567Z",
    "deadline=2026-11-20T18:00:00.Z",
    "deadline=2026-11-20T18:00+24:00",
    "deadline=2026-11-20T18:00+00:60",
    "deadline=2026-02-29T18:00Z",
    "deadline=1900-02-29T18:00Z",
    "deadline=2026-13-01T18:00Z",
    "deadline=2026-00-01T18:00Z",
    "deadline=2026-01-00T18:00Z",
    "deadline=0000-01-01T00:00Z",
    "deadline=2026-W47-5T18:00Z",
    "deadline=20261120T1800Z",
    "deadline=2026-11-20 18:00Z",
    "key=0123456789abcde",
    "key=0123456789ABCDEF",
    "key=0123456789abcdefa",
    "model=x\u00a0",
    "\u00a0",
]


@pytest.mark.parametrize("body", GOOD)
def test_both_readers_accept(lua: Any, body: str) -> None:
    """A valid comment passes in Python and in Lua."""
    assert _python_accepts("hadar:" + body)
    assert lua.call("submit", **submitted_job(comment="hadar:" + body)).accepted
    assert lua.call("modify", comment="hadar:" + body).accepted


@pytest.mark.parametrize("body", BAD)
def test_both_readers_refuse_with_a_reason(lua: Any, body: str) -> None:
    """A broken comment is refused by both, and the user is told why."""
    assert not _python_accepts("hadar:" + body)
    for answer in (
        lua.call("submit", **submitted_job(comment="hadar:" + body)),
        lua.call("modify", comment="hadar:" + body),
    ):
        assert not answer.accepted
        assert len(answer.said) == 1 and answer.said[0].startswith("hadar: ")
        assert not answer.logged, "refused for its content, not for a failure of the script"


def test_unknown_key_lists_the_valid_ones_of_the_python_grammar(lua: Any) -> None:
    """The two lists of keys are the same, in the same order, with the same examples."""
    answer = lua.call("submit", **submitted_job(comment="hadar:modle=x"))

    assert answer.said[0].endswith("valid keys: " + ", ".join(comment.KEYS))
    for key, rule in comment.KEYS.items():
        said = lua.call("submit", **submitted_job(comment=f"hadar:{key}=")).said[0]
        assert said.endswith(f"such as {key}={rule.example}")


_PIECES = st.sampled_from([*comment.KEYS, *"=,+-./07", "v100", "yes", "6h", "/pp4", ".toml", " ", "T", ":", "Z", "é"])


@examples(400)
@given(body=st.lists(_PIECES, max_size=9).map("".join))
def test_verdicts_agree_on_random_comments(lua: Any, body: str) -> None:
    """Whatever is thrown together from the grammar's pieces, both readers say the same."""
    assert _lua_accepts(lua, "hadar:" + body) == _python_accepts("hadar:" + body)


@examples(300)
@given(key=st.sampled_from(list(comment.KEYS)), value=st.text(max_size=12).filter(lambda t: "\0" not in t))
def test_verdicts_agree_on_random_values(lua: Any, key: str, value: str) -> None:
    """The same for any text at all as a value."""
    text = f"hadar:{key}={value}"
    assert _lua_accepts(lua, text) == _python_accepts(text)
