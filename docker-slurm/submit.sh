#!/bin/sh
# Submit six trainings of unlike speed, and look. In the cluster: docker compose exec -u researcher slurmctld
#   /opt/hadar/docker-slurm/submit.sh [STEPS]
set -eu
steps=${1:-600}
cd /shared
submit() { # NAME GPUS MODEL BATCH SCRIPT
    sbatch --parsable --job-name="$1" --nodes=1 --gres="gpu:$2" --requeue --open-mode=append --output="%x-%j.log" \
        --comment="hadar:model=$3,batch=$4,steps=$steps,nodes=1" --wrap "
            . /opt/train/bin/activate
            export OMP_NUM_THREADS=1
            hadar-srun -- torchrun --standalone --nproc-per-node=$2 /opt/hadar/examples/$5 --steps $steps"
}
for number in 1 2; do
    submit "image$number" 2 resnet18 128 cnn.py
    submit "text$number" 4 lm 80 charlm.py
    submit "taste$number" 1 recommendation 2048 recommender.py
done
squeue --Format=JobID:8,Name:12,StateCompact:6,NodeList:20,Reason
