"""What users can say: options of sbatch, comments, scripts, and changes to their own jobs, each by kind of attack."""

from __future__ import annotations

__all__ = ["COMMENTS", "ONE", "OPTIONS", "SCRIPTS", "SIZES", "UPDATES", "VERBS"]

ONE = "--gres=gpu:1"
# Options of sbatch, by kind of attack; % stands for an earlier job of the same user.
OPTIONS: dict[str, tuple[str, ...]] = {
    "gres with control characters": ("--hold", "--gres=gpu:v100\x1f:1"),
    "gres with a line end": ("--hold", "--gres=gpu:v100\n:1"),
    "gres of other names": ("--gres=gpu:1,vgpu:8",),
    "gres typed": ("--gres=gpu:k80:1",),
    "gres of many GPUs": ("--hold", "--gres=gpu:4294967290"),
    "GPUs of the job": ("--gpus=2",),
    "GPUs per task": ("--gpus-per-task=1", "-n", "2"),
    "CPUs per GPU": ("--gpus=1", "--cpus-per-gpu=12"),
    "array": (ONE, "--array=0-5"),
    "array with a throttle": (ONE, "--array=0-9%1"),
    "excluded nodes": (ONE, "--exclude=v100-1,v100-2,k80-1"),
    "exclusive": (ONE, "--exclusive"),
    "exclusive to the user": (ONE, "--exclusive=user"),
    "reservation": (ONE, "--reservation=later", "--time=5"),
    "reservation that is not there": (ONE, "--reservation=no-such"),
    "licence": (ONE, "--licenses=tool:1"),
    "more licences than there are": (ONE, "--licenses=tool:2"),
    "QOS with a GPU limit": (ONE, "--qos=one"),
    "more GPUs than the QOS allows": ("--gres=gpu:2", "--qos=one"),
    "QOS with a job limit": (ONE, "--qos=few"),
    "account with a limit": (ONE, "--account=small"),
    "begin time soon": (ONE, "--begin=now+15"),
    "begin time later": (ONE, "--begin=now+1hour"),
    "dependency": (ONE, "--dependency=afterok:%"),
    "dependency on itself": (ONE, "--dependency=singleton", "--job-name=same"),
    "two nodes": (ONE, "-N", "2"),
    "range of nodes": (ONE, "-N", "1-3"),
    "several partitions": (ONE, "-p", "all,k80"),
    "all memory of a node": (ONE, "--mem=0"),
    "much memory": (ONE, "--mem=120000M"),
    "many CPUs": (ONE, "-c", "14"),
    "short time limit": (ONE, "--time=1"),
    "constraint": (ONE, "--constraint=v100|k80"),
    "constraint with counts": (ONE, "-N", "2", "--constraint=[v100*1&k80*1]"),
    "node list": (ONE, "-w", "v100-1"),
    "held": (ONE, "--hold"),
    "nice": (ONE, "--nice=2000"),
    "no requeue": (ONE, "--no-requeue"),
    "heterogeneous": (ONE, ":", ONE),
    "name with control characters": (ONE, "--job-name=a\x1fb\x1b[31m\n12 RUNNING root"),
    "own signal": (ONE, "--signal=B:USR1@30", "--time=2"),
    "spread over nodes": ("--gres=gpu:2", "--spread-job"),
    "contiguous": (ONE, "-N", "2", "--contiguous"),
    "deadline": (ONE, "--deadline=now+2minutes", "--time=1"),
    "no GPUs": ("-n", "1"),
}
COMMENTS: dict[str, str] = {
    "well-formed": "hadar:model=resnet18,batch=64,steps=1000",
    "forged asked": "hadar:asked=2/1/16/16,lease=100",
    "forged asked and nodes": "hadar:asked=8/4/16/16,nodes=1-4",
    "weight": "hadar:model=resnet18,batch=64,steps=1000,weight=1000",
    "one step": "hadar:model=resnet18,batch=64,steps=1",
    "many steps": "hadar:model=resnet18,batch=64,steps=" + "9" * 15,
    "long period": "hadar:fork=auto,period=" + "9" * 400 + "s",
    "short period": "hadar:fork=auto,period=0.000000001s",
    "long deadline": "hadar:deadline=" + "9" * 400 + "d",
    "blanks": "hadar:" + " " * 30_000 + "model=resnet18",
    "100 kB": "hadar:model=" + "a" * 100_000,
    "not UTF-8": "hadar:model=\udcff\udcfe",
    "control characters": "hadar:model=a\x1fb\rc",
    "unknown key": "hadar:modle=x",
    "elastic": "hadar:model=resnet18,batch=64,steps=1000,gpus=1-4,nodes=1-2,lose=yes",
    "many sizes": "hadar:gpus=1-9999,nodes=1-99999",
    "graph that never ends": "hadar:graph=/dev/zero.toml",
    "graph in a pipe": "hadar:graph=pipe.toml",
    "key of another": "hadar:key=0123456789abcdef",
    "may be moved": "hadar:model=vgg,batch=32,steps=5000,ckpt=yes",
    "no such type": "hadar:types=h900",
    "none": "",
}
# What a script does before it waits; $D is its directory for reports.
_DIRECTORY = 'D=.hadar/$SLURM_JOB_ID; mkdir -p "$D"; '
SCRIPTS: dict[str, str] = {
    "sleeps": "",
    "ignores signals": "trap '' TERM USR1 USR2 INT CONT; ",
    "spool is a directory": _DIRECTORY + "mkdir $D/spool.jsonl; ",
    "spool is a pipe": _DIRECTORY + "mkfifo $D/spool.jsonl; ",
    "spool is a link": _DIRECTORY + "ln -s /dev/zero $D/spool.jsonl; ",
    "spool is huge": _DIRECTORY + "truncate -s 20G $D/spool.jsonl; ",
    "spool is garbage": _DIRECTORY + "head -c 3000000 /dev/urandom > $D/spool.jsonl; ",
    "spool is closed": _DIRECTORY + "touch $D/spool.jsonl; chmod 000 $D/spool.jsonl $D; ",
    "spool of impossible rates": _DIRECTORY + "RATES",
    "no directory": "rm -rf .hadar; ln -s /proc .hadar; ",
    "forks a lot": "for i in $(seq 30); do sleep 20 & done; ",
    "ends at once": "exit 0; ",
    "fails at once": "exit 1; ",
    "asks to be requeued": "[ -z $SLURM_RESTART_COUNT ] && scontrol requeue $SLURM_JOB_ID; ",
}
UPDATES: dict[str, str] = {
    "start time": "StartTime=now+600", "start now": "StartTime=now", "comment": "Comment=hadar:weight=1000",
    "comment away": "Comment=x", "time limit": "TimeLimit=1", "node list": "NodeList=v100-1", "nice": "Nice=100",
    "nodes": "NumNodes=2-2", "CPUs": "NumCPUs=16", "dependency": "Dependency=singleton", "partition": "Partition=k80",
    "GPUs": "TresPerNode=gres:gpu:2", "requeue off": "Requeue=0", "excluded nodes": "ExcNodeList=k80-1",
    "constraint": "Features=v100", "name": "Name=a\x1fb",
}  # fmt: skip
# of these it is their owner alone who says so: an administrator's would lift limits
SIZES = ("nodes", "CPUs", "GPUs")
VERBS = ("hold", "release", "requeue", "requeuehold", "top")
