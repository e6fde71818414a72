#!/bin/sh
# Try the containers' files without Docker, in a suite that may be spoilt:
#   HADAR_SUITE_FRESH=1 tools/slurm_suite.sh 22.05 sh docker-slurm/try.sh FILE.deb
set -eu
deb=$(readlink -f "$1") && [ -f "$deb" ] || { echo "try: $1 is not there; see HADAR_SUITE_BIND" >&2; exit 2; }
here=$(dirname "$(readlink -f "$0")")

if [ -z "${HADAR_OWN_NETWORK:-}" ]; then
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends python3 munge mariadb-server-core iproute2 >/dev/null
    dpkg --install "$deb" >/dev/null
    getent passwd mysql >/dev/null || useradd --system mysql
    rm -f /etc/munge/munge.key
    mkdir -p /opt/hadar
    cp -r "$here" /opt/hadar/docker-slurm
    cp -r "$here/../examples" /opt/hadar/examples
    sh /opt/hadar/docker-slurm/prepare.sh
    HADAR_OWN_NETWORK=1 exec unshare --net --mount --propagation private sh "$0" "$@"
fi

"$here/../.venv/bin/python" "$here/without_docker.py" sh "$here/try_cluster.sh"
