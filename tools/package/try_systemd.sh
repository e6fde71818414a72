#!/bin/sh
# Boot systemd in the suite of Slurm 22.05 with the Debian package installed, and use its units as an administrator would.
# Run by: HADAR_SUITE_FRESH=1 tools/slurm_suite.sh 22.05 sh tools/package/try_systemd.sh FILE.deb
#
# This script is process 1 of its own process namespace (slurm_suite.sh). It prepares, then becomes systemd, whose one
# goal is a unit that runs this script again, as "trial"; systemd ends with the trial's exit code.
set -eu
here=$(readlink -f "$0")

step() { printf '== %s\n' "$*"; }
fail() {
    printf 'try_systemd: %s\n' "$*"
    systemctl status --no-pager --full slurm-hadar || true
    journalctl --no-pager -n 30 -u 'slurm-hadar*' || true
    ls -l /etc/slurm-hadar /var/lib/slurm-hadar || true
    cat /srv/job/out || true
    exit 1
}
# until CONDITION is true: within 45 s
soon() {
    late=$(($(date +%s) + 45))
    until eval "$1"; do
        [ "$(date +%s)" -lt "$late" ] || fail "not in time: $1"
        sleep 0.2
    done
}
shown() { systemctl show -P "$1" "${2:-slurm-hadar}"; }

prepare() {
    deb=$(readlink -f "$1") && [ -f "$deb" ] || { echo "try_systemd: $1 is not there; see HADAR_SUITE_BIND" >&2; exit 2; }
    [ $$ = 1 ] || { echo "try_systemd: must be process 1 (tools/slurm_suite.sh)" >&2; exit 2; }
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    {
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends python3 systemd
        dpkg --install "$deb"
    } >/dev/null
    cd / && unset PYTHONPATH
    hadar cluster up --dir /srv/c --nodes v100:1x2,k80:1x2
    cat >/etc/systemd/system/trial.service <<UNIT
[Unit]
DefaultDependencies=no
Requires=systemd-journald.service
After=systemd-journald.service
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
ExecStart=/bin/sh $here trial
StandardOutput=file:/srv/said
StandardError=file:/srv/said
TimeoutStartSec=400
UNIT
    # What systemd must not find in a container: cgroups of others, and a kernel to set up.
    mkdir -p /srv/cgroup && mount -t cgroup2 cgroup2 /srv/cgroup
    find /srv/cgroup/hadar-trial -depth -type d -exec rmdir {} + 2>/dev/null || true # of an earlier trial
    mkdir -p /srv/cgroup/hadar-trial && echo 1 >/srv/cgroup/hadar-trial/cgroup.procs
    : >/srv/said
    export container=hadar-trial
    exec unshare --cgroup --mount --propagation private sh -c '
        set -eu
        umount /srv/cgroup
        mount -t tmpfs tmpfs /run
        mount -o remount,ro,bind /sys 2>/dev/null || { mount --bind /sys /sys; mount -o remount,ro,bind /sys; }
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys
        tail -f /srv/said &
        exec /lib/systemd/systemd --system --unit=trial.service --log-level=warning'
}

trial() {
    trap 'sleep 1' EXIT # what was said last is still being passed on
    step "settings: the service as it is shipped, told where the private Slurm is"
    eval "$(hadar cluster env --dir /srv/c)"
    for unit in slurm-hadar slurm-hadar-once; do
        mkdir -p "/etc/systemd/system/$unit.service.d"
        printf '[Service]\nEnvironment=SLURM_CONF=%s PATH=%s\n' "$SLURM_CONF" "$PATH" \
            >"/etc/systemd/system/$unit.service.d/trial.conf"
    done
    printf 'WatchdogSec=20\nRestartSec=1\n' >>/etc/systemd/system/slurm-hadar.service.d/trial.conf
    cat >/etc/slurm-hadar/config.d/50-trial.toml <<CONFIG
[controller]
mode = "act"
round_s = 5
users = ["slurm-hadar"]
[metrics]
listen = "127.0.0.1:0"
CONFIG
    systemctl daemon-reload

    step "start: Type=notify, so it returns when the first round can begin"
    systemctl start slurm-hadar || fail "it does not start"
    [ "$(shown ActiveState)/$(shown SubState)" = active/running ] || fail "it does not run"
    soon 'shown StatusText | grep -q round'
    shown StatusText
    [ "$(stat -c %U:%G:%a /var/lib/slurm-hadar/journal.db)" = slurm-hadar:slurm-hadar:640 ] || fail "the journal's rights"

    step "a job of the account's own is steered, reports and ends, under the sandbox"
    mkdir -p /srv/job && chown slurm-hadar: /srv/job && cd /srv/job
    job=$(runuser -u slurm-hadar -- env "PATH=$PATH" "SLURM_CONF=$SLURM_CONF" sbatch --parsable --gres=gpu:2 --requeue \
        --chdir=/srv/job --output=/srv/job/out --comment=hadar:model=resnet18,batch=64 \
        --wrap "hadar-srun -- sh -c 'until [ -e go ]; do sleep 0.1; done; echo ran'")
    soon "scontrol show job $job | grep -q 'Comment=.*,key='" # its agent has found the controller's channel
    soon 'journalctl --no-pager -u slurm-hadar -o cat | grep -q "1 steered, 1 running"'
    touch /srv/job/go
    soon "grep -q ran /srv/job/out"
    soon "runuser -u slurm-hadar -- hadar history $job 2>/dev/null | grep -q completed"
    runuser -u slurm-hadar -- hadar history "$job"
    journalctl --no-pager -u slurm-hadar -o cat | grep -q "(act, hadar)" || fail "no round in the log"

    step "reload: a right configuration is taken, a wrong one is told of and left"
    sed -i 's/round_s = 5/round_s = 6/' /etc/slurm-hadar/config.d/50-trial.toml
    systemctl reload slurm-hadar
    soon 'journalctl --no-pager -u slurm-hadar -o cat | grep -q "controller.round_s.*6"'
    sed -i 's/round_s = 6/round_s = "often"/' /etc/slurm-hadar/config.d/50-trial.toml
    systemctl reload slurm-hadar
    soon 'shown StatusText | grep -q round_s'
    shown StatusText
    [ "$(shown ActiveState)" = active ] || fail "a wrong configuration has ended it"
    sed -i 's/round_s = "often"/round_s = 5/' /etc/slurm-hadar/config.d/50-trial.toml
    systemctl reload slurm-hadar

    step "the watchdog ends one that hangs, and systemd starts it again"
    pid=$(shown MainPID)
    kill -STOP "$pid"
    soon '[ "$(shown NRestarts)" = 1 ] && [ "$(shown ActiveState)" = active ]'
    journalctl --no-pager -u slurm-hadar | grep -i "watchdog timeout" || fail "it was not the watchdog"

    step "killed: started again"
    kill -KILL "$(shown MainPID)"
    soon '[ "$(shown NRestarts)" = 2 ] && [ "$(shown ActiveState)" = active ]'

    step "stop, and one round by the timer's unit"
    systemctl stop slurm-hadar
    [ "$(shown Result)" = success ] || fail "its end was no success: $(shown Result)"
    systemctl start slurm-hadar-once || fail "one round failed"
    [ "$(shown Result slurm-hadar-once)" = success ] || fail "one round failed"
    systemctl start slurm-hadar.timer
    systemctl list-timers --no-pager | grep slurm-hadar || fail "the timer is not there"
    systemctl stop slurm-hadar.timer

    step "the dashboard, but for PrivateUsers=yes: the kernel refuses user namespaces within a chroot"
    mkdir -p /etc/systemd/system/slurm-hadar-web.service.d
    printf '[Service]\nPrivateUsers=no\n' >/etc/systemd/system/slurm-hadar-web.service.d/trial.conf
    systemctl daemon-reload
    systemctl start slurm-hadar-web
    soon '/usr/lib/slurm-hadar/bin/python -c "
import urllib.request
print(urllib.request.urlopen(\"http://127.0.0.1:8641/healthz\", timeout=5).read().decode())" 2>/dev/null'
    systemctl stop slurm-hadar-web

    step "exposure, of the units as loaded"
    for unit in slurm-hadar slurm-hadar-once slurm-hadar-web; do
        systemd-analyze --no-pager security "$unit.service" | tail -1
    done
    hadar cluster down --dir /srv/c
    echo "try_systemd: all is well"
}

if [ "${1:-}" = trial ]; then trial; else prepare "$@"; fi
