#!/bin/sh
# Install the Debian package in the suite of Slurm 22.05, use it there as an administrator would, and purge it.
# Run by: HADAR_SUITE_FRESH=1 tools/slurm_suite.sh 22.05 sh tools/package/try_deb.sh FILE.deb
set -eu
deb=$(readlink -f "$1") && [ -f "$deb" ] || { echo "try_deb: $1 is not there; see HADAR_SUITE_BIND" >&2; exit 2; }

step() { printf '== %s\n' "$*"; }
fail() { printf 'try_deb: %s\n' "$*" >&2; exit 1; }

step "what a head node has besides Slurm"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
# minbase leaves out the man pages that this test looks for
rm -f /etc/dpkg/dpkg.cfg.d/docker /etc/dpkg/dpkg.cfg.d/excludes
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3 man-db bash-completion systemd zsh >/dev/null
before=$(mktemp) && find / -xdev -path /tmp -prune -o -path /var/lib/dpkg -prune -o -path /var/cache -prune -o \
    -path /var/log -prune -o -path /run -prune -o -print | sort >"$before"

step "install, without the network"
# dpkg fetches nothing: all that the package needs is in it, or was installed above
dpkg --install "$deb"
cd "$(mktemp -d)" # not the checkout, whose modules would be found first
unset PYTHONPATH
hadar --version
hadar config check
[ "$(hadar config show --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["controller.mode"])')" = observe ] ||
    fail "mode is not observe after installing"
getent passwd slurm-hadar >/dev/null || fail "no account slurm-hadar"
[ "$(stat -c %U /var/lib/slurm-hadar)" = slurm-hadar ] || fail "/var/lib/slurm-hadar is not the account's"

step "each library loads"
/usr/lib/slurm-hadar/bin/python -c 'import importlib, pkgutil, slurm_hadar
for module in pkgutil.walk_packages(slurm_hadar.__path__, "slurm_hadar."):
    jobs_side = ("runtime", "testing", "serving", "tuning")  # PyTorch, pytest, and extras that compute nodes have
    if not module.name.startswith(tuple(f"slurm_hadar.{room}" for room in jobs_side)):
        importlib.import_module(module.name)
import matplotlib.pyplot, pandas, sklearn.ensemble, scipy.optimize, starlette, uvicorn, textual'

step "units, man pages, completion"
systemd-analyze verify --man=no /usr/lib/systemd/system/slurm-hadar*.service /usr/lib/systemd/system/slurm-hadar.timer 2>&1 |
    grep slurm-hadar && fail "systemd does not like a unit"
[ -z "$(find /etc/systemd/system -name 'slurm-hadar*')" ] || fail "installing has enabled a unit"
for page in hadar hadar-run hadar-srun slurm-hadar.toml; do
    man "$page" | grep -q DESCRIPTION || fail "no man page $page"
done
man --whatis hadar-explain >/dev/null || fail "man does not know hadar-explain"
bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader hadar || [ $? = 124 ]
    COMP_WORDS=(hadar exp) COMP_CWORD=1; _hadar_completion hadar exp hadar; [ "${COMPREPLY[*]}" = explain ]' ||
    fail "bash does not complete hadar exp"
zsh -fc 'autoload -U compinit; compinit -u; [ "${_comps[hadar]}" = _hadar ]' || fail "zsh does not know _hadar"

step "a private Slurm: the doctor, a round that looks, a round that acts, the wrapper in a job"
directory=$PWD
hadar cluster up --dir "$directory/c" --nodes v100:1x4,k80:1x2
eval "$(hadar cluster env --dir "$directory/c")"
hadar doctor || fail "hadar doctor ended with $?"
hadar run --once
job=$(sbatch --parsable --gres=gpu:2 --requeue --open-mode=append --output="$directory/out" --chdir="$directory" \
    --comment=hadar:model=resnet18,batch=64 \
    --wrap "hadar-srun -- sh -c 'until [ -e go ]; do sleep 0.1; done; echo ran under hadar-srun'")
hadar run --once --mode act 2>&1 | tee "$directory/log"
grep -q "1 jobs, 1 steered" "$directory/log" || fail "the round has not seen the job"
hadar queue
touch "$directory/go"
tries=0
until grep -q "ran under hadar-srun" "$directory/out" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -le 300 ] || { scontrol show job "$job"; fail "the job did not run within 30 s"; }
    sleep 0.1
done
hadar cluster down --dir "$directory/c"
cd /; rm -rf "$directory"

step "purge"
runuser -u slurm-hadar -- touch /var/lib/slurm-hadar/kept
dpkg --remove slurm-hadar
[ -e /var/lib/slurm-hadar/kept ] && [ -e /etc/slurm-hadar/config.toml ] ||
    fail "removing, not purging, has taken state or configuration"
dpkg --purge slurm-hadar
left=$(find / -xdev -path /tmp -prune -o -path /var/lib/dpkg -prune -o -path /var/cache -prune -o -path /var/log -prune -o -path /run -prune -o \
    -print | sort | comm -13 "$before" - | grep -v -e "^/root" -e "^/etc/.*-$" || true)
[ -z "$left" ] || fail "purging has left: $left"
echo "try_deb: all is well"
