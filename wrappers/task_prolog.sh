#!/bin/sh
# Slurm's TaskProlog for jobs steered by slurm_hadar: Slurm applies the lines "unset NAME" and "export NAME=value" that
# it prints. It runs as the job's user before the batch script and before each task, so it starts no other program.
# Install: TaskProlog=/path/to/task_prolog.sh in slurm.conf, beside job_submit.lua, which sets HADAR_MANAGED.

[ "$HADAR_MANAGED" = 1 ] || exit 0

# sbatch froze the numbers of the request into the environment. After a move they contradict the allocation, and an
# srun in the script fails or uses too few GPUs. Tasks of a step were started by srun, whose numbers are right. The batch
# script has no step, or, in 26.05, step -5.
if [ -z "${SLURM_STEP_ID%%-*}" ]; then
    echo "unset SLURM_GPUS"
    echo "unset SLURM_GPUS_PER_NODE"
    echo "unset SLURM_GPUS_PER_SOCKET"
    echo "unset SLURM_NTASKS_PER_NODE"
    echo "unset SLURM_NTASKS_PER_SOCKET"
    # a job that asked for tasks gets the number its allocation has now: the sum of "2(x3),1"; one that has only inherited
    # a number gets none, since Slurm may count its CPUs there
    if [ -n "$SLURM_NTASKS" ]; then
        tasks=0
        rest="$SLURM_TASKS_PER_NODE,"
        [ "$HADAR_NO_TASKS" != 1 ] || rest=
        while [ -n "$rest" ]; do
            group=${rest%%,*}
            rest=${rest#*,}
            each=${group%%"("*}
            nodes=1
            case $group in *"(x"*) nodes=${group#*"(x"} nodes=${nodes%")"} ;; esac
            case $each,$nodes in ,* | *, | *[!0-9,]*) tasks=0 && break ;; esac
            tasks=$((tasks + each * nodes))
        done
        if [ "$tasks" -gt 0 ]; then
            echo "export SLURM_NTASKS=$tasks"
            echo "export SLURM_NPROCS=$tasks"
        else
            echo "unset SLURM_NTASKS"
            echo "unset SLURM_NPROCS"
        fi
    fi
fi

[ -z "$HADAR_NO_TASKS" ] || echo "unset HADAR_NO_TASKS" # it is not for jobs that are submitted from this one

# where the controller listens for reports
if [ -z "$HADAR_CHANNEL" ]; then
    for folder in "${SLURM_CONF%/*}" /etc/slurm /etc/slurm-hadar; do
        if [ -n "$folder" ] && [ -r "$folder/hadar-channel.json" ]; then
            echo "export HADAR_CHANNEL=$folder/hadar-channel.json"
            break
        fi
    done
fi
exit 0
