"""Run the services of compose.yaml where there is no Docker: their own entrypoints, commands, order and health checks.

python docker-slurm/without_docker.py [COMMAND...]

For tests, as root in a file system that may be spoilt (tools/slurm_suite.sh with HADAR_SUITE_FRESH=1), with Debian's
Slurm and slurm-hadar's package installed. Each service has its own network address, host name, processes, /run and
/var/spool behind a bridge; the disk is one for all. What differs from Docker: the database is Debian's MariaDB,
volumes are folders of that disk and never read-only, nothing is published. When all is up COMMAND runs as a host
beside them, and its exit code is ours.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ENTRYPOINT = "/opt/hadar/docker-slurm/entrypoint.sh"
NETWORK = "10.88.7"
#: instead of the image's own, which is not Debian's
DATABASE = """
install -d -o mysql /run/mysqld /var/lib/hadar-db
mariadb-install-db --user=mysql --datadir=/var/lib/hadar-db --skip-test-db >/dev/null
cat >/run/init.sql <<EOF
CREATE DATABASE $MARIADB_DATABASE;
CREATE USER $MARIADB_USER@'%' IDENTIFIED BY '$MARIADB_PASSWORD';
GRANT ALL ON $MARIADB_DATABASE.* TO $MARIADB_USER@'%';
EOF
exec mariadbd --no-defaults --user=mysql --datadir=/var/lib/hadar-db --init-file=/run/init.sql "$@"
"""
DATABASE_HEALTH = 'mariadb -h db -u "$MARIADB_USER" -p"$MARIADB_PASSWORD" -e "SELECT 1" "$MARIADB_DATABASE"'


class Service:
    """One entry of compose.yaml, at work or not."""

    def __init__(self, name: str, content: dict[str, Any], number: int) -> None:
        self.name, self.content, self.address = name, content, f"{NETWORK}.{number}"
        self.environ = {
            "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "SLURM_CONF": "/etc/slurm/slurm.conf",
            **{key: _default(str(value)) for key, value in content.get("environment", {}).items()},
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return Path(f"/tmp/{self.name}.log")

    def start(self) -> None:
        """Start the entrypoint in namespaces of its own."""
        command = [ENTRYPOINT, *self.content["command"]]
        if self.name == "db":
            command = ["sh", "-c", DATABASE, "db", *self.content["command"]]
        inside = (
            f"hostname {self.content.get('hostname', self.name)}; mount -t proc proc /proc; mount -t tmpfs tmpfs /run; "
            "mount -t tmpfs tmpfs /var/spool; mkdir /run/hadar-web; mount --bind /srv/web /run/hadar-web; "
            'cd /shared; exec "$@"'
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
                 "sh", "-c", inside, "sh", *command],
                env=self.environ, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def inside(self, words: list[str]) -> int:
        """Run ``words`` in the service's namespaces; its exit code."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        if not children:
            return 1
        # --root: the suite's, which is not that of the mount namespace
        enter = ["nsenter", "--target", children[0], "--root", "--mount", "--uts", "--pid", "--net"]
        done = subprocess.run([*enter, *words], env=self.environ, capture_output=True, check=False, timeout=60)
        return done.returncode

    def healthy(self) -> bool:
        kind, *words = self.content["healthcheck"]["test"]
        if self.name == "db":
            kind, words = "CMD-SHELL", [DATABASE_HEALTH]
        return self.inside(["sh", "-c", words[0].replace("$$", "$")] if kind == "CMD-SHELL" else words) == 0

    def reached(self, condition: str) -> bool:
        """Whether what another service waits for has come. Raises SystemExit where it never will."""
        assert self.process is not None
        code = self.process.poll()
        if condition == "service_completed_successfully":
            if code:
                self.fail(f"ended with {code}")
            return code == 0
        if code is not None:
            self.fail(f"ended with {code}")
        return self.healthy()

    def fail(self, why: str) -> None:
        sys.exit(f"without_docker: {self.name} {why}\n{self.log.read_text(errors='replace')[-4000:]}")


def _default(value: str) -> str:
    """``${NAME:-default}`` as compose reads it, where NAME is not set."""
    return value[2:-1].partition(":-")[2] if value.startswith("${") else value


def network(services: list[Service]) -> None:
    """A bridge, and on it a network namespace for each service and for this process."""
    hosts = "".join(f"{s.address} {s.name}\n" for s in services)
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{NETWORK}.254 host\n{hosts}")
    Path("/run/netns").mkdir(parents=True, exist_ok=True)
    Path("/etc/resolv.conf").write_text("")  # nobody to ask from these networks, nor to wait for
    run("ip link add hadar0 type bridge")
    run(f"ip address add {NETWORK}.254/24 dev hadar0")
    run("ip link set hadar0 up")
    run("ip link set lo up")
    for number, service in enumerate(services):
        run(f"ip netns add {service.name}")
        run(f"ip link add veth{number} type veth peer name eth0 netns {service.name}")
        run(f"ip link set veth{number} master hadar0 up")
        for words in ("link set lo up", "link set eth0 up", f"address add {service.address}/24 dev eth0"):
            run(f"ip -n {service.name} {words}")


def run(words: str) -> None:
    subprocess.run(shlex.split(words), check=True)


def main(command: list[str]) -> int:
    content = yaml.safe_load((HERE / "compose.yaml").read_text())["services"]
    services = {name: Service(name, entry, number) for number, (name, entry) in enumerate(content.items(), start=1)}
    network(list(services.values()))
    for folder in ("/srv/web", "/etc/munge", "/shared"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    waiting = dict(services)
    end = time.monotonic() + 180
    try:
        while waiting or not all(s.process and _up(s) for s in services.values()):
            for name, service in list(waiting.items()):
                needs = service.content.get("depends_on", {})
                if all(services[n].process and services[n].reached(how["condition"]) for n, how in needs.items()):
                    print(f"start {name}", flush=True)
                    service.start()
                    del waiting[name]
            if time.monotonic() > end:
                late = next(s for s in services.values() if not (s.process and _up(s)))
                late.fail("is not up within 180 s")
            time.sleep(0.2)
        print("all services are up and healthy", flush=True)
        return subprocess.run(command, check=False).returncode if command else 0
    finally:
        for service in services.values():
            if service.process is not None and service.process.poll() is None:
                service.process.kill()  # and with it, by --kill-child, all that it started
                service.process.wait()


def _up(service: Service) -> bool:
    return service.reached("service_healthy" if "healthcheck" in service.content else "service_completed_successfully")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
