"""The schema of the configuration: sections, defaults and bounds. What a setting does is its description, from which
the manual is made."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

__all__ = [
    "ROUND_S", "AuditSection", "Config", "ControllerSection", "GuardSection", "HooksSection", "JobsSection",
    "LogSection", "Mode", "NetworkSection", "PartitionSection", "PredictSection", "SharedBy", "SharedGpus",
]  # fmt: skip

#: How short and how long a round may be.
ROUND_S = (1.0, 86400.0)


class Mode(enum.StrEnum):
    """How far the controller goes: look only, also say what it would do, or do it."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ACT = "act"


class SharedGpus(enum.StrEnum):
    """How two jobs use one GPU: each when it has the turn, or both at once."""

    TURNS = "turns"
    BESIDE = "beside"


class SharedBy(enum.StrEnum):
    """Whose jobs may share a GPU: those of one user, or all."""

    USER = "user"
    ALL = "all"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_other_kind(cls, value: Any, info: ValidationInfo) -> Any:
        """For pydantic True is 1, and a path any text: an empty one would be the working directory."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)} and bool not in (kind, *get_args(kind)):
            raise ValueError("should be a number")
        if isinstance(value, str) and "\0" in value:  # no path, address or command may hold one
            raise ValueError("should hold no NUL character")
        return None if value == "" and Path in get_args(kind) else value


class SlurmSection(_Section):
    """How to talk to Slurm."""

    backend: Literal["auto", "cli", "pyslurm"] = Field("auto", description="auto takes pyslurm where it matches")
    timeout_s: float = Field(30.0, gt=0, le=600, description="longest wait for one Slurm command")
    retries: int = Field(2, ge=0, le=10, description="further tries of a read that failed")
    slow_read_s: float = Field(5.0, gt=0, description="a round whose reads take longer makes the next one wait twice")


class ControllerSection(_Section):
    """The loop."""

    mode: Mode = Field(Mode.OBSERVE, description="default mode; partitions may differ")
    round_s: float = Field(360.0, ge=ROUND_S[0], le=ROUND_S[1], description="length of a round")
    event_round_s: float = Field(
        10.0,
        ge=0,
        description="a job that is submitted, ends or starts reporting, and GPUs that fall free while jobs wait bring "
        "the next round forward, but not closer to the last one than this, nor than 20 times what its reads took; "
        "0 = never",
    )
    lease_rounds: float = Field(2.0, ge=1.5, le=10, description="a waiting job becomes eligible by itself after this")
    state_dir: Path | None = Field(
        None,
        description="journal, keys, lock; local disk; empty = beside a private cluster's slurm.conf, else "
        "/var/lib/slurm-hadar for root and ~/.local/state/slurm-hadar for others",
    )
    users: tuple[str, ...] = Field((), description="steer only these users' jobs; empty = everybody's")
    partitions: tuple[str, ...] = Field((), description="steer only these partitions; empty = all")
    keep_days: float = Field(30.0, gt=0, description="journal entries older than this are deleted")
    foresee_s: float = Field(
        2.0,
        ge=0,
        le=60,
        description="CPU seconds a round, and at most 2 % of its length, for expected starts of the "
        "jobs that wait, which the dashboard, `top` and `queue --json` show; less often where events bring rounds "
        "forward; 0 = none",
    )
    ha: Literal["primary", "any"] = Field(
        "primary", description="with several SlurmctldHost: act only on the host whose slurmctld acts; any = everywhere"
    )


class PartitionSection(_Section):
    """What differs in one partition."""

    mode: Mode = Field(description="observe, advise or act in this partition")


class PolicySection(_Section):
    """Who decides."""

    model_config = ConfigDict(allow_inf_nan=True)  # a policy says itself what its parameters may be

    name: str = Field(
        "hadar",
        description="one of policies.md, such as hadar, srtf, fifo or none, or one that an installed package provides",
    )
    params: dict[str, bool | int | float | str] = Field(default_factory=dict, description="the policy's parameters")
    weight_from: Literal["priority", "fairshare", "none"] = Field(
        "none",
        description="what a job's weight is multiplied by, from 0.1 to 10: its Slurm priority over the median "
        "of the queue; 2^(1 - u) of its user and of its account, u = GPU time lately had over the mean of those in the "
        "queue; nothing",
    )


class GuardSection(_Section):
    """Limits on what one round may do, whatever the policy says."""

    max_preemptions: int = Field(20, ge=0, description="running jobs stopped or moved in one round, at most")
    max_moves_per_job: int = Field(20, ge=0, description="after so many moves a job stays where it is (servers not)")
    min_run_s: float = Field(300.0, ge=0, le=1e9, description="a job runs at least this long before it may be moved")
    max_stretch: float = Field(
        30.0,
        ge=0,
        description="a job is not stopped for others while more than so many times the time that it has run has "
        "passed since its submission; moves go on; at least 1, or 0 = no such bound",
    )
    max_changed_share: float = Field(
        1.0, gt=0, le=1, description="largest share of the steered jobs whose placement one round may change"
    )
    max_failed_writes: int = Field(
        20,
        ge=1,
        description="act no more for a while after so many refused writes in a row; the while grows with each "
        "time, from one round to an hour",
    )
    exempt_users: tuple[str, ...] = Field((), description="jobs never steered")
    exempt_qos: tuple[str, ...] = Field((), description="jobs never steered")
    exempt_partitions: tuple[str, ...] = Field((), description="jobs never steered")
    max_weight: float = Field(1.0, gt=0, le=1000, description="a larger `weight=` in a job's comment counts as this")
    max_weight_by_account: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default_factory=dict, description="by account, instead of that: `[guard.max_weight_by_account]`, `urgent = 4`"
    )
    max_weight_by_qos: dict[str, Annotated[float, Field(gt=0, le=1000)]] = Field(
        default_factory=dict, description="the same by QOS; goes before that of the account"
    )

    @field_validator("max_stretch")
    @classmethod
    def _whole_time(cls, value: float) -> float:
        if 0 < value < 1:  # more than a part of the time has always passed
            raise ValueError("below 1 no job would ever be stopped for others; must be at least 1, or 0 for no bound")
        return value


class JobsSection(_Section):
    """How jobs are treated where they do not say it themselves."""

    lose_progress: bool = Field(False, description="jobs without checkpoint support may be moved, losing progress")
    ack_timeout_s: float = Field(
        60.0, ge=0, le=3600, description="longest wait for a checkpoint before a move; a service goes on meanwhile"
    )
    limit_grace_s: float = Field(
        120.0,
        ge=0,
        le=86400,
        description="so long before its time limit, but after a quarter of it, a job is asked to save; 0 = never",
    )
    end_timeout_s: float = Field(60.0, ge=1, le=3600, description="longest wait for a requeued job to leave its nodes")
    start_timeout_s: float = Field(15.0, ge=1, le=600, description="longest wait for a placed job to start")
    restart_cost_s: float = Field(30.0, ge=0, description="cost of a restart until one is measured")
    slow_down: float = Field(
        1.0,
        ge=1,
        le=100,
        description="how many times as long as its steps take alone a job may run beside another one on one GPU, at "
        "every moment, of jobs without `share=`; 1 = such a job shares with nobody, or, if it asks for N of the M "
        "shards of a GPU, may run M/N times as long",
    )
    shared_gpus: SharedGpus = Field(
        SharedGpus.TURNS,
        description="how jobs with shards use a GPU until it is measured: `turns` = each has half "
        "of the time (hadar-srun), unless one is to have more or they are known to need less, `beside` = at once, as "
        "Gavel's published pairs do",
    )
    shared_by: SharedBy = Field(
        SharedBy.USER,
        description="whose jobs share a GPU: `user` = those of one user, who take turns by a broker of their own, "
        "`all` = also those of different users; only where root runs `hadar share broker --users all` for each GPU",
    )
    retry_failed_restart: bool = Field(
        True, description="a job that fails within 2 s of a restart is put back into the queue, once"
    )


class FairnessSection(_Section):
    """How the GPU time that users and accounts have had is remembered."""

    half_life_h: float = Field(168.0, gt=0, le=87600, description="after this a GPU-second counts half")


class PredictSection(_Section):
    """How long jobs are expected to be whose comment and script do not say how many steps they make."""

    enabled: bool = Field(True, description="ask the stored predictor about such jobs, where there is one")
    use: bool = Field(True, description="policies go by what is expected; false = it is shown to people only")
    predictor: Literal["forest", "group_median", "group_mean"] = Field(
        "forest", description="what to train; a forest that orders jobs worse than the group mean is refused"
    )
    retrain_s: float = Field(86400.0, ge=0, description="time between trainings; 0 = only hadar predict --train")
    retry_s: float = Field(3600.0, ge=1, description="a training that failed is tried again after this")
    timeout_s: float = Field(3600.0, ge=1, description="a training that takes longer is ended")
    min_jobs: int = Field(20, ge=1, description="jobs that must have ended well before there is anything to learn")
    history_days: float = Field(90.0, gt=0, le=9999, description="how far back to learn from")
    source: Literal["auto", "sacct", "journal"] = Field(
        "auto", description="where ended jobs are looked up; auto = sacct, or the journal where Slurm keeps no accounts"
    )


class ChannelSection(_Section):
    """Reports from jobs."""

    enabled: bool = Field(True, description="listen for reports; without it only Slurm and spool files inform")
    bind: str = Field("tcp://*:*", description="where to listen; * as port takes a free one")
    host: str = Field("", description="name or address that compute nodes reach this host by; empty = its host name")
    file: Path | None = Field(None, description="where jobs find the address and public key; empty = beside slurm.conf")
    max_message_bytes: int = Field(8192, ge=1024, le=1 << 20, description="larger messages are dropped")


class LinksSection(_Section):
    """Bandwidths that differ from those of all others."""

    inside_bytes_s: float | None = Field(None, gt=0, description="between the GPUs of a node")
    outside_bytes_s: float | None = Field(None, gt=0, description="out of a node")


class NetworkSection(_Section):
    """Bandwidths in bytes/s, for jobs with a graph. `sbatch_templates/bandwidth.sbatch` measures them."""

    inside_bytes_s: float = Field(
        100e9, gt=0, description="between the GPUs of a node: NVLink; PCIe alone has about 12e9"
    )
    outside_bytes_s: float = Field(12.5e9, gt=0, description="out of a node: one port of 100 Gbit/s")
    types: dict[str, LinksSection] = Field(
        default_factory=dict,
        description="by GPU type, what differs: `[network.types.a100]` with inside_bytes_s, outside_bytes_s or both",
    )
    nodes: dict[str, LinksSection] = Field(
        default_factory=dict, description="the same by name of node; goes before that of its type"
    )
    oversubscription: float = Field(
        1.0,
        ge=1,
        description="uplink of a switch = NICs of the nodes below it over this; switches are those that Slurm knows",
    )
    uplinks: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="by name of switch, instead of that: `[network.uplinks]`, `s0 = 100e9`"
    )


class GpusSection(_Section):
    """What the site's GPUs are, where their names do not tell."""

    memory_gb: dict[str, Annotated[int, Field(ge=1, le=9999)]] = Field(
        default_factory=dict,
        description="memory of one GPU by GPU type, for jobs with `mem=`: `[gpus.memory_gb]`, "
        "`p100 = 16`; goes before what a type's name says, and before the data sheets, of which the least counts",
    )


class LogSection(_Section):
    """What ``hadar run`` says of itself on stderr."""

    format: Literal["text", "json"] = Field("text", description="lines for people, or one JSON object per line")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the least that is worth a line")


class MetricsSection(_Section):
    """Figures for Prometheus; their names are in operations.md."""

    listen: str = Field("", description="HOST:PORT to serve them at, such as 127.0.0.1:9641; empty = nowhere")
    textfile: Path | None = Field(
        None, description="written after each round, for the textfile collector of node_exporter; ends in .prom"
    )

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError("must read HOST:PORT, such as 127.0.0.1:9641")
        try:
            host.encode("idna")  # as it will be looked up
        except UnicodeError:
            raise ValueError(f"no host can have the name {host[:80]!r}") from None
        return value

    @field_validator("textfile")
    @classmethod
    def _suffix(cls, value: Path | None) -> Path | None:
        if value is not None and value.suffix != ".prom":
            raise ValueError("must end in .prom, else node_exporter passes it over")
        return value


class AuditSection(_Section):
    """The record of every change to Slurm, ``audit.jsonl`` in the state directory."""

    enabled: bool = Field(True, description="keep it")
    max_bytes: int = Field(64 << 20, ge=0, description="a file as large is rotated; 0 = left to logrotate")
    keep: int = Field(10, ge=1, le=1000, description="rotated files that are kept")


class HooksSection(_Section):
    """Programs that are told what happened."""

    moved: str = Field(
        "", description="command for each job that was moved or stopped, such as `wrappers/mail_user.sh`; empty = none"
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="a program that runs longer is ended")
    at_once: int = Field(4, ge=1, le=64, description="so many run at the same time; others wait their turn")

    @field_validator("moved")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from None
        return value


class Config(_Section):
    """The whole configuration."""

    slurm: SlurmSection = SlurmSection()
    controller: ControllerSection = ControllerSection()
    partitions: dict[str, PartitionSection] = Field(default_factory=dict)
    policy: PolicySection = PolicySection()
    guard: GuardSection = GuardSection()
    jobs: JobsSection = JobsSection()
    fairness: FairnessSection = FairnessSection()
    predict: PredictSection = PredictSection()
    channel: ChannelSection = ChannelSection()
    network: NetworkSection = NetworkSection()
    gpus: GpusSection = GpusSection()
    log: LogSection = LogSection()
    metrics: MetricsSection = MetricsSection()
    audit: AuditSection = AuditSection()
    hooks: HooksSection = HooksSection()
    origins: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)

    @field_validator("origins", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return dict(value)

    def mode(self, partition: str) -> Mode:
        """The mode in force in ``partition``; of a job's comma list the one that does least, since Slurm may start
        it in any of them."""
        if not self.partitions:
            return self.controller.mode
        sections = [self.partitions.get(name) for name in partition.split(",")]
        return min((s.mode if s else self.controller.mode for s in sections), key=list(Mode).index)

    @property
    def boldest(self) -> Mode:
        """The mode that does most, of the controller's own and its partitions': what may be done at all."""
        return max((self.controller.mode, *(p.mode for p in self.partitions.values())), key=list(Mode).index)

    def flat(self) -> dict[str, Any]:
        """Every setting as ``section.key``, with its value as JSON has it; a table without entries is {}."""
        return dict(_flat(self.model_dump(mode="json")))

    def origin(self, key: str) -> str:
        """Where ``section.key`` was set: a file, ``command line`` or ``default``."""
        return self.origins.get(key, "default")


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
