#!/bin/sh
# Put the cluster's configuration in place; once, while the image is built. Needs slurm-hadar's package installed.
set -eu
here=$(dirname "$(readlink -f "$0")")
nodes=v100:2x4,p100:2x4,k80:1x4

getent passwd researcher >/dev/null || useradd --create-home --uid 1000 --shell /bin/bash researcher
install -d -m 755 /etc/slurm /shared
install -d -m 755 -o slurm -g slurm /var/lib/slurm/slurmctld /var/log/slurm
chown researcher: /shared
install -m 644 "$here/slurm.conf" "$here/gres.conf" "$here/cgroup.conf" /etc/slurm/
install -m 644 /usr/share/slurm-hadar/wrappers/job_submit.lua /etc/slurm/
install -m 755 /usr/share/slurm-hadar/wrappers/task_prolog.sh /etc/slurm/
install -m 644 "$here/config.toml" /etc/slurm-hadar/config.toml
# what the pretended GPUs are worth, after published figures
/usr/lib/slurm-hadar/bin/python - "$nodes" <<'PYTHON'
import sys
from pathlib import Path

from slurm_hadar.cluster import emulation
from slurm_hadar.cluster.spec import parse_nodes

emulation.write(Path("/etc/slurm"), "hadar_docker", parse_nodes(sys.argv[1]), 20.0)
PYTHON
