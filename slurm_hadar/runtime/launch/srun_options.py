"""srun's command line, read as srun reads it. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Iterator

__all__ = ["split_command", "values", "without"]

# srun's long options that take no value, or only one after "="; all others take the next argument
LONE_OPTIONS = frozenset((
    "allow-attach", "bcast", "contiguous", "debugger-test", "disable-status", "exact", "exclusive", "get-user-env",
    "help", "hold", "immediate", "interactive", "kill-on-bad-exit", "label", "multi-prog", "nice", "no-allocate",
    "no-kill", "no-requeue", "overcommit", "overlap", "oversubscribe", "preserve-env", "propagate", "pty", "quiet",
    "quit-on-interrupt", "reboot", "requeue", "resv-ports", "send-libs", "share", "spread-job", "test-only",
    "unbuffered", "usage", "use-min-nodes", "verbose", "version", "wait-for-children", "whole", "x11",
))  # fmt: skip
LONE_LETTERS = "EHIKOQRVXZhkluvs"
OPTIONAL_LETTERS = "IKks"  # a value of theirs stands in the same word
_LONG = {"n": "ntasks", "N": "nodes", "m": "distribution", "w": "nodelist", "x": "exclude", "r": "relative",
         "F": "nodefile"}  # fmt: skip


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(srun's options, the command), split at ``--`` or else where srun itself would see the command begin."""
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return arguments[:index], arguments[index + 1 :]
        if not word.startswith("-") or word == "-":
            return arguments[:index], arguments[index:]
        index += 2 if _takes_next(word) else 1
    return arguments, []


def values(options: list[str]) -> Iterator[tuple[str, str]]:
    """(long name, value) of each option, the value empty where there is none.

    Letters of which no long name is needed here stand for themselves.
    """
    index = 0
    while index < len(options):
        word, following = options[index], options[index + 1] if index + 1 < len(options) else ""
        takes = _takes_next(word)
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
        after = index + (2 if _takes_next(word) else 1)
        name = word[2:].partition("=")[0] if word.startswith("--") else _LONG.get(word[1:2], "")
        if name not in names:
            kept += options[index:after]
        index = after
    return kept


def _takes_next(word: str) -> bool:
    if word.startswith("--"):
        return "=" not in word and word[2:] not in LONE_OPTIONS
    for position, letter in enumerate(word[1:], start=1):
        if letter not in LONE_LETTERS:
            return position == len(word) - 1
        if letter in OPTIONAL_LETTERS:
            return False
    return False
