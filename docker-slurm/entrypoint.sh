#!/bin/sh
# What a container of the cluster does: entrypoint.sh keys|slurmdbd|accounts|slurmctld|slurmd|controller|web
# compose.yaml starts a role when those that it needs are healthy. Daemons replace this shell, so that they get signals.
set -eu

as() { # USER COMMAND...: become that user's process
    user=$1 && shift
    exec setpriv --reuid "$user" --regid "$user" --init-groups env HOME="$(getent passwd "$user" | cut -d: -f6)" "$@"
}

munge() { # the daemon that vouches for who is who; ready when this returns
    install -d -m 755 -o munge -g munge /run/munge
    rm -f /run/munge/munged.pid /run/munge/munge.socket.2 # of before a restart of the container
    setpriv --reuid munge --regid munge --init-groups munged
}

case ${1:-} in
keys) # one secret for munge, one for who looks at the dashboard; both stay as they are
    umask 077
    [ -s /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none
    chown munge: /etc/munge /etc/munge/munge.key && chmod 400 /etc/munge/munge.key
    [ -s /run/hadar-web/token ] || od -An -N24 -tx1 /dev/urandom | tr -d ' \n' >/run/hadar-web/token
    chown -R slurm-hadar: /run/hadar-web
    # a volume that was made empty is root's
    chown slurm-hadar: /var/lib/slurm-hadar && chmod 755 /var/lib/slurm-hadar
    chown slurm: /var/lib/slurm/slurmctld && chown researcher: /shared && chmod 755 /shared
    ;;
slurmdbd)
    munge
    umask 077
    { # a password may hold / and &
        cat /opt/hadar/docker-slurm/slurmdbd.conf
        printf 'StoragePass=%s\n' "${STORAGE_PASSWORD:?set it in compose.yaml}"
    } >/etc/slurm/slurmdbd.conf
    chown slurm: /etc/slurm/slurmdbd.conf
    install -d -m 755 -o slurm /run/slurm
    as slurm slurmdbd -D
    ;;
accounts) # before slurmctld: without its record it would run on without accounting
    munge
    has() { sacctmgr -nP show "$1" "$2" format="$1" | grep -qx "$2"; }
    has cluster hadar_docker || sacctmgr -i add cluster hadar_docker
    has account research || sacctmgr -i add account research cluster=hadar_docker
    has user researcher || sacctmgr -i add user researcher account=research
    # the rights that the controller needs, and no more
    has user slurm-hadar || sacctmgr -i add user slurm-hadar account=research adminlevel=Operator
    ;;
slurmctld)
    munge
    install -d -m 755 -o slurm /run/slurm
    as slurm slurmctld -D
    ;;
slurmd)
    munge
    install -d -m 755 /run/gpus /var/spool/slurmd
    for gpu in 0 1 2 3; do ln -sfn /dev/null "/run/gpus/$gpu"; done
    exec slurmd -D
    ;;
controller)
    munge
    as slurm-hadar hadar run
    ;;
web)
    as slurm-hadar hadar web --listen 0.0.0.0:8641 --token-file /run/hadar-web/token
    ;;
*)
    echo "entrypoint: role ${1:-} is unknown: keys, slurmdbd, accounts, slurmctld, slurmd, controller, web" >&2
    exit 2
    ;;
esac
