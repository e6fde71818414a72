#!/bin/sh
# Beside the running services: a job of the researcher, the controller's word on it, and the dashboard.
set -eu
export SLURM_CONF=/etc/slurm/slurm.conf
fail() { printf 'try_cluster: %s\n' "$*" >&2; tail -n 20 /tmp/controller.log /tmp/slurmctld.log >&2; exit 1; }
within() { # SECONDS COMMAND...: until it succeeds
    end=$(($(date +%s) + $1)) && shift
    until "$@"; do
        [ "$(date +%s)" -lt "$end" ] || fail "not in time: $*"
        sleep 0.2
    done
}

install -d -m 755 -o munge /run/munge && setpriv --reuid munge --regid munge --init-groups munged
sinfo --Node --Format=NodeList,StateLong,Gres
[ "$(sinfo --noheader --Node | wc -l)" = 5 ] || fail "not five nodes"
cd /shared
job=$(setpriv --reuid researcher --regid researcher --init-groups sbatch --parsable --gres=gpu:2 --output=/shared/out \
    --comment=hadar:model=resnet18,batch=128 \
    --wrap 'hadar-srun -- sh -c "echo gpus \$CUDA_VISIBLE_DEVICES on \$SLURMD_NODENAME; until [ -e go ]; do sleep 0.1; done"')
out() { [ -e /shared/out ] && grep -q '^gpus 0,1 on ' /shared/out; }
within 90 out
cat /shared/out
# asked as the controller's account, of the journal that the controller writes
seen() { setpriv --reuid slurm-hadar --regid slurm-hadar --init-groups hadar queue >/tmp/queue && grep -q "^$job  *researcher .*running" /tmp/queue; }
within 90 seen
cat /tmp/queue
round() { grep -Eq "round [0-9]+ \(act, hadar\): 1 jobs, 1 steered, 1 running" /tmp/controller.log; }
within 90 round
setpriv --reuid researcher --regid researcher --init-groups touch /shared/go
ended() { sacct --noheader --parsable2 --allocations --jobs "$job" --format=State,User,Comment | grep -q '^COMPLETED|researcher|hadar:'; }
within 90 ended
sacctmgr --noheader --parsable2 show user slurm-hadar format=User,AdminLevel | grep -qx 'slurm-hadar|Operator' ||
    fail "the controller is no operator"
token=$(cat /srv/web/token)
python3 - "$token" "$job" <<'PYTHON'
import sys
import urllib.error
import urllib.request

token, job = sys.argv[1:]
try:
    urllib.request.urlopen("http://web:8641/")
    sys.exit("the dashboard needs no token")
except urllib.error.HTTPError as error:
    assert error.code in (401, 403), error
request = urllib.request.Request(f"http://web:8641/job/{job}", headers={"Authorization": f"Bearer {token}"})
assert f"job {job}" in urllib.request.urlopen(request).read().decode().lower()
PYTHON
echo "try_cluster: all is well"
