"""Checks of this host: the installation, the configuration, and what the controller needs around it."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import sys

from slurm_hadar import __version__
from slurm_hadar.doctor.finding import Answer, Check, cannot_tell, note, ok, problem, warning
from slurm_hadar.doctor.host import Host
from slurm_hadar.doctor.slurm_checks import added
from slurm_hadar.slurm.survey import Unknown, name_of

__all__ = ["CHECKS", "SLURM_CHECKS"]

_SHARED_FS = re.compile(r"nfs|lustre|gpfs|beegfs|cifs|smb|ceph|fuse\.|afs|9p|glusterfs|wekafs|panfs|orangefs")
_LEASE = re.compile(r"^LEASE_S\s*=\s*(\d+(?:\.\d+)?).*$", re.MULTILINE)
_BESIDE = "dofile it in the site's script: docs/admin.md#beside-a-job-submit-lua-of-your-own"
_LEASES = re.compile(r"^(?:TYPES_)?LEASE_S\s*=.*$", re.MULTILINE)


def _packages(host: Host) -> Answer:
    said = f"slurm_hadar {__version__} on Python {host.python}"
    if isinstance(host.packages, Unknown):
        return cannot_tell(f"{said}: {host.packages.why}", f"{sys.executable} -m pip install .")
    if host.packages:
        return problem(
            f"{said} lacks {', '.join(host.packages)}", f"{sys.executable} -m pip install --upgrade slurm_hadar"
        )
    return ok(said)


def _config(host: Host) -> Answer:
    fault = host.config_error or host.policy_error
    if fault:
        rest = " (the other checks go by the defaults)" if host.config_error else ""
        return problem(f"{fault}{rest}", "hadar config check")
    amiss = [f"controller.users names {name}, unknown on this host" for name in host.no_users]
    amiss += [*host.metrics_faults, *([f"hooks.moved: {host.hook_fault}"] if host.hook_fault else [])]
    if amiss:
        return warning("; ".join(amiss), "hadar config show --origin    # mend it, or leave it out")
    if host.plugin_errors:
        return warning("; ".join(host.plugin_errors), "pip uninstall PACKAGE    # or mend it")
    files = sorted({origin for origin in host.config.origins.values() if origin != "command line"})
    return ok(
        f"valid, from {', '.join(files) if files else 'defaults alone'}; policy {host.config.policy.name}, "
        f"mode {host.config.controller.mode}"
    )


def _state_dir(host: Host) -> Answer:
    fix = "hadar run --set controller.state_dir=DIRECTORY    # or in the configuration file"
    if host.state_fault:
        return problem(f"{host.state_dir} cannot be used: {host.state_fault}", f"{fix}; or make room, or rights, there")
    if host.state_files:
        account = name_of(os.geteuid())
        return problem(
            "; ".join(host.state_files.values()),
            f"chown {account} {' '.join(shlex.quote(str(p)) for p in host.state_files)}    # as root",
        )._replace(meanwhile=fix)
    if isinstance(host.state_fs, Unknown):
        return cannot_tell(host.state_fs.why)
    if _SHARED_FS.search(host.state_fs):
        return warning(f"{host.state_dir} is on {host.state_fs}, where a database may be damaged or locked", fix)
    return ok(f"{host.state_dir} can be written, on {host.state_fs}")


def _lock(host: Host) -> Answer:
    if isinstance(host.lock_holder, Unknown):
        return cannot_tell(host.lock_holder.why)
    if host.lock_holder:
        return note(f"a controller runs: {host.lock_holder}; none that steers the same jobs is started beside it")
    return ok("no other controller on this host steers these users' jobs (other hosts cannot be seen)")


def _primary(host: Host) -> Answer:
    daemons = host.slurm.daemons if not isinstance(host.slurm, Unknown) else host.slurm
    if isinstance(daemons, Unknown):
        return cannot_tell(daemons.why)
    if isinstance(host.slurmctld, Unknown):
        return cannot_tell(host.slurmctld.why)
    here = [d for d in daemons if d.host in host.slurmctld]
    acting = next((d for d in daemons if d.up), None)
    if acting is None:
        return cannot_tell("no slurmctld is up")
    if acting in here:
        return ok(f"this host runs the slurmctld that acts ({acting.role})")
    if here and host.config.controller.ha == "primary":
        return note(f"this host is a {here[0].role} of slurmctld; {acting.host} acts, and a controller here stands by")
    if here:
        return warning(
            f"this host is a {here[0].role} of slurmctld; {acting.host} acts",
            "hadar run --set controller.ha=primary    # it then stands by",
        )
    if len(daemons) > 1:
        return warning(
            f"this host is none of those of slurmctld ({', '.join(d.host for d in daemons)}): a controller here acts "
            f"whichever of them does (now {acting.host}), so it must be the only one",
            "hadar doctor    # on the others: whether a controller runs there",
        )
    return note(f"this host runs no slurmctld; {acting.host} does, over the network")


def _channel(host: Host) -> Answer:
    if not host.config.channel.enabled:
        return note(
            "channel.enabled = false: jobs write spool files, which are read once a round",
            "hadar run --set channel.enabled=true",
        )
    if host.channel_fault:
        return problem(
            f"{host.channel_file} cannot be written: {host.channel_fault}",
            f"install -d -o {name_of(os.geteuid())} /etc/slurm-hadar    # as root",
        )._replace(
            meanwhile="hadar run --set channel.file=$HOME/hadar-channel.json    # and in jobs "
            "export HADAR_CHANNEL=$HOME/hadar-channel.json"
        )
    if host.port_fault:
        return problem(f"channel.bind cannot be had: {host.port_fault}", "hadar run --set 'channel.bind=tcp://*:*'")
    if not host.found_by_jobs:
        return warning(
            f"jobs do not look for {host.channel_file} by themselves",
            f"export HADAR_CHANNEL={host.channel_file}    # in jobs; or open /etc/slurm-hadar",
        )
    if isinstance(host.host_addresses, Unknown):
        return warning(f"channel.host: {host.host_addresses.why}", "hadar run --set channel.host=ADDRESS")
    loops = all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in host.host_addresses)
    if loops and not host.private:
        return warning(
            f"jobs are told to report to {host.channel_host}, which is {', '.join(host.host_addresses)}: "
            "on a node that may be the node itself",
            "hadar run --set channel.host=ADDRESS",
        )
    port = host.channel_bind.rpartition(":")[2]
    where = f"{host.channel_host} ({', '.join(host.host_addresses)})"
    if port == "*" and not host.private:
        return note(
            f"jobs report to {where} at a port that is chosen freely; a firewall needs a fixed one",
            "hadar run --set 'channel.bind=tcp://*:5557'",
        )
    return ok(f"jobs report to {where}, announced in {host.channel_file}; whether nodes reach it is not tried")


def _pyslurm(host: Host) -> Answer:
    wanted = host.config.slurm.backend
    version = host.pyslurm_version
    slurm = host.slurm.version if not isinstance(host.slurm, Unknown) else host.slurm
    if not isinstance(slurm, Unknown) and not host.pyslurm and version is not None and wanted != "cli":
        return ok(f"pyslurm {version} reads this Slurm")
    if wanted == "pyslurm":
        return problem(f"slurm.backend = pyslurm, but {host.pyslurm}", "hadar run --set slurm.backend=auto")
    if wanted == "cli":
        return ok("slurm.backend = cli: Slurm's commands are used, pyslurm is not looked at")
    if version is None:
        return ok("pyslurm is not installed, and not needed: Slurm's commands are as fast")
    return note(f"pyslurm {version} is installed but not used: {host.pyslurm}", "hadar run --set slurm.backend=cli")


def _work_dirs(host: Host) -> Answer:
    seen = host.work_dirs
    if isinstance(seen, Unknown):
        return cannot_tell(seen.why)
    if not seen:
        return cannot_tell("no job with a hadar: comment is in the queue now")
    hidden = [path for path, visible in seen.items() if not visible]
    if hidden:
        return note(
            f"{len(hidden)} of {len(seen)} jobs' work directories cannot be seen from here, such as "
            f"{hidden[0]}: reports that did not come by the channel are lost",
            "mount the users' file system here",
        )
    return ok(f"the work directories of jobs can be seen ({len(seen)} looked at)")


def _job_submit(host: Host) -> Answer:
    if isinstance(host.slurm, Unknown):
        return cannot_tell(host.slurm.why)
    plugins = host.slurm.setting("JobSubmitPlugins")
    if isinstance(plugins, Unknown):
        return cannot_tell(plugins.why)
    source, conf = f"{host.wrappers}/job_submit.lua", host.slurm.settings.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    target = conf.rpartition("/")[0]
    copy = f"cp {source} {target}/ && scontrol reconfigure    # on the slurmctld host"
    if "lua" not in (name.strip().removeprefix("job_submit/") for name in plugins.split(",")):
        return note(
            "job_submit.lua is not installed: jobs must be submitted untyped and with --requeue",
            f"{added(host.slurm, 'JobSubmitPlugins', 'lua')}    # and {copy}",
        )
    if isinstance(host.job_submit, Unknown):
        return cannot_tell(f"JobSubmitPlugins=lua is set, but the script is not to be read here: {host.job_submit.why}")
    if isinstance(host.own_script, Unknown):
        return cannot_tell(host.own_script.why)
    if "hadar_parse" not in host.job_submit:
        return note(
            "the site has a job_submit.lua of its own, without ours: jobs must be submitted untyped and with --requeue",
            f"cp {source} {target}/hadar.lua    # and {_BESIDE}",
        )
    site, own = (_LEASES.sub("", text) for text in (host.job_submit, host.own_script))
    if site.splitlines()[:2] != own.splitlines()[:2]:
        return warning(
            "the site has a job_submit.lua of its own, with functions of ours in it: whether they are of this version "
            "cannot be told",
            f"cp {source} {target}/hadar.lua    # instead of them, and {_BESIDE}",
        )
    if site != own:
        return warning(
            "job_submit.lua is installed, but not the text that comes with this version",
            f"diff {source} {target}/; {copy}    # or over the file of another name that it loads",
        )
    return _lease_of(host, float(m[1]) if (m := _LEASE.search(host.job_submit)) else 0.0)


def _lease_of(host: Host, lease_s: float) -> Answer:
    round_s = host.config.controller.round_s
    if 0 < lease_s < round_s:
        return note(
            f"job_submit.lua is that of this version, but LEASE_S = {lease_s:g} is below round_s = {round_s:g}",
            f"LEASE_S = {round_s * 1.1:.0f}    # in job_submit.lua, or 0",
        )
    extra = f", new jobs wait {lease_s:g} s for a round" if lease_s else ""
    return ok(f"job_submit.lua is that of this version{extra}")


def _task_prolog(host: Host) -> Answer:
    if isinstance(host.slurm, Unknown):
        return cannot_tell(host.slurm.why)
    prolog = host.slurm.setting("TaskProlog")
    if isinstance(prolog, Unknown):
        return cannot_tell(prolog.why)
    if not prolog:
        return note(
            "no TaskProlog: a plain srun in a job of another shape may fail or do nothing; hadar-srun does not",
            f"TaskProlog=/etc/slurm/task_prolog.sh    # {host.wrappers}/task_prolog.sh",
        )
    return (
        ok(f"TaskProlog = {prolog}")
        if prolog.endswith("/task_prolog.sh")
        else cannot_tell(f"TaskProlog = {prolog}: whether it clears SLURM_NTASKS and SLURM_GPUS is not known")
    )


# Those that need no Slurm to be judged, and those that do.
CHECKS = (
    Check("packages", "An older library may lack what is called.", _packages),
    Check("config", "A controller with a broken configuration does not start.", _config),
    Check("state_dir", "What was measured, and why things were done, is kept in a database there.", _state_dir),
    Check("channel", "Jobs report their speed and are asked to save through it.", _channel),
)
SLURM_CHECKS = (
    Check("lock", "Two controllers of the same jobs would undo each other's work.", _lock),
    Check("primary", "Of several controllers' hosts one is to act, the one where slurmctld does.", _primary),
    Check("pyslurm", "It can read Slurm only where it was built for the same release.", _pyslurm),
    Check("work_dirs", "Reports that cannot be sent are written to the job's directory, and read there.", _work_dirs,
          ""),
    Check("job_submit", "It makes hadar: jobs steerable as they are submitted, and refuses broken ones.", _job_submit,
          "hadar submit --gres=gpu:1 -- COMMAND    # submits what can be moved, without the plug-in"),
    Check("task_prolog", "sbatch freezes the first shape into a job's environment.", _task_prolog,
          "hadar-srun -- COMMAND    # in place of srun"),
)  # fmt: skip
