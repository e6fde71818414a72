"""srun's command line, read as srun reads it. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Iterator

__all__ = ["split_command", "values", "without"]

# srun's long options that take no value, or only one after "="; all others take the next argument
LONE_OPTIONS = frozenset((
    "allow-attach", "async", "bcast", "compress", "consolidate-segments", "contiguous", "debugger-test",
    "disable-status", "exact", "exclusive", "external-launcher", "get-user-env", "help", "hold", "immediate",
    "interactive", "kill-on-bad-exit", "label", "multi-prog", "nice", "no-allocate", "no-kill", "no-requeue",
    "oom-kill-step", "overcommit", "overlap", "oversubscribe", "preserve-env", "propagate", "pty", "quiet",
    "quit-on-interrupt", "reboot", "requeue", "resv-ports", "send-libs", "share", "spread-job", "spread-segments",
    "stepmgr", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version", "wait-for-children", "whole",
    "x11",
    # of Pyxis, which starts containers
    "container-entrypoint", "container-entrypoint-log", "container-mount-home", "container-readonly",
    "container-remap-root", "container-writable", "no-container-entrypoint", "no-container-mount-home",
    "no-container-remap-root",
))  # fmt: skip
# with those that take a value: what tells whether a beginning of a name is one option's alone
_OPTIONS = LONE_OPTIONS | frozenset((
    "accel-bind", "account", "acctg-freq", "bb", "bbf", "bcast-exclude", "begin", "chdir", "cluster",
    "cluster-constraint", "clusters", "comment", "constraint", "container", "context", "core-spec",
    "cores-per-socket", "cpu-bind", "cpu-freq", "cpu_bind", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot",
    "dependency", "distribution", "epilog", "error", "exclude", "export", "extra-node-info", "gid", "gpu-bind",
    "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "het-group", "hint",
    "input", "job-name", "jobid", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu",
    "mem-per-gpu", "mincpus", "mpi", "msg-timeout", "network", "nodefile", "nodelist", "nodes", "ntasks",
    "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode",
    "output", "pack-group", "partition", "power", "prefer", "priority", "profile", "prolog", "qos", "relative",
    "reservation", "signal", "slurmd-debug", "sockets-per-node", "switches", "task-epilog", "task-prolog",
    "tasks-per-node", "thread-spec", "threads", "threads-per-core", "time", "time-min", "tmp", "uid", "wait", "wckey",
))  # fmt: skip
LONE_LETTERS = "EHIKOQRVXZhkluvs"
OPTIONAL_LETTERS = "IKks"  # a value of theirs stands in the same word
_LONG = {"n": "ntasks", "N": "nodes", "m": "distribution", "w": "nodelist", "x": "exclude", "r": "relative",
         "F": "nodefile"}  # fmt: skip
_SAME = {"tasks-per-node": "ntasks-per-node"}


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(srun's options, long ones by their whole names, the command), split at ``--`` or else where srun itself would
    see the command begin."""
    options: list[str] = []
    index = 0
    while index < len(arguments):
        word = _whole(arguments[index])
        if word == "--":
            return options, arguments[index + 1 :]
        if not word.startswith("-") or word == "-":
            return options, arguments[index:]
        after = index + (2 if _takes_next(word, *arguments[index + 1 : index + 2]) else 1)
        options += [word, *arguments[index + 1 : after]]
        index = after
    return options, []


def values(options: list[str]) -> Iterator[tuple[str, str]]:
    """(long name, value) of each option, the value empty where there is none.

    Letters of which no long name is needed here stand for themselves.
    """
    index = 0
    while index < len(options):
        word, following = options[index], options[index + 1] if index + 1 < len(options) else ""
        takes = _takes_next(word, following)
        index += 2 if takes else 1
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            yield name, following if takes else value
            continue
        for position, letter in enumerate(word[1:], start=1):
            if letter not in LONE_LETTERS or letter in OPTIONAL_LETTERS:
                yield _LONG.get(letter, letter), following if takes else word[position + 1 :]
                break
            yield _LONG.get(letter, letter), ""


def without(options: list[str], names: Collection[str]) -> list[str]:
    """The options without those of these long names, also where they stand as a letter of their own (``-N 2``)."""
    kept: list[str] = []
    index = 0
    while index < len(options):
        word = options[index]
        after = index + (2 if _takes_next(word, *options[index + 1 : index + 2]) else 1)
        name = word[2:].partition("=")[0] if word.startswith("--") else _LONG.get(word[1:2], "")
        if name not in names:
            kept += options[index:after]
        index = after
    return kept


def _whole(word: str) -> str:
    """A long option of which there is only so much as no other begins with, as srun takes it."""
    name, equals, value = word[2:].partition("=")
    if not word.startswith("--") or not name:
        return word
    meant = [name] if name in _OPTIONS else [one for one in _OPTIONS if one.startswith(name)]
    return f"--{_SAME.get(meant[0], meant[0])}{equals}{value}" if len(meant) == 1 else word


def _takes_next(word: str, following: str = "") -> bool:
    if word.startswith("--"):
        if "=" in word or word[2:] in LONE_OPTIONS:
            return False
        return word[2:] in _OPTIONS or not following.startswith("-")  # those of a plug-in nobody here knows
    for position, letter in enumerate(word[1:], start=1):
        if letter not in LONE_LETTERS:
            return position == len(word) - 1
        if letter in OPTIONAL_LETTERS:
            return False
    return False
