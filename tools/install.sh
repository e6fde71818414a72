#!/bin/sh
# Make the project's virtual environment. Run by `make`; safe to run again.
set -eu
: "${PYTHON:=python3}" "${VENV:=.venv}" "${TORCH:=torch==2.13.0}"

say() { printf 'install: %s\n' "$*" >&2; }

as_root() { [ "$(id -u)" = 0 ]; }

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "Python 3.11 or newer is needed as $PYTHON (set PYTHON=...)"
    exit 1
fi

# Debian ships venv apart from Python.
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    if as_root && command -v apt-get >/dev/null; then
        apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    else
        say "Python's venv module is missing: install the package python3-venv"
        exit 1
    fi
fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

say "installing into $VENV (PyTorch is large: a few minutes at first, and 6 GB in all if it comes with CUDA)"
# torch first and by itself: a range asked for together with other packages may take a build with CUDA.
pip install "$TORCH"
pip install -e ".[all,docs,test,lint,package]"

# Beside Python: a real browser for the tests of the dashboard, and wrong clocks for the campaign of faults. What needs
# them says so and is skipped without them.
if as_root && [ -e /etc/debian_version ] && ! dpkg-query -W chromium chromium-driver libfaketime >/dev/null 2>&1; then
    say "installing Chromium and libfaketime for tests"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        chromium chromium-driver libfaketime >/dev/null; } || say "they cannot be installed; what needs them is skipped"
fi
say "done: $VENV/bin/hadar"
