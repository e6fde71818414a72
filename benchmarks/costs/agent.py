"""What measuring costs an unmodified training: steps per second with the agent and its hook, against without.

    python -m benchmarks.costs.agent [--step-ms 1.0] [--seconds 3] [--rounds 5]

Both run the same script, in turns, so that other load on the machine meets both alike; the step is a busy loop of the
given length around a real optimizer step. Prints one JSON object; ``ratio`` is the median over the rounds, ``hook_us``
the hook's own time, measured by itself.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
work_s, seconds = float(sys.argv[1]), float(sys.argv[2])
weight = torch.nn.Parameter(torch.zeros(8)); weight.grad = torch.ones(8)
optimizer = torch.optim.SGD([weight], lr=0.1)
clock = time.perf_counter
for _ in range(200): optimizer.step()
steps, began = 0, clock()
while clock() - began < seconds:
    until = clock() + work_s
    while clock() < until: pass
    optimizer.step(); steps += 1
print(steps / (clock() - began))
"""


def measure(step_s: float, seconds: float, agent: bool, directory: Path) -> float:
    """Steps per second of one run."""
    command = [sys.executable, "-c", SCRIPT, str(step_s), str(seconds)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if agent:
        command = [sys.executable, "-m", "slurm_hadar.runtime.agent", "--", *command]
        env |= {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "HADAR_JOB_DIR": str(directory)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def hook_us() -> float:
    """Microseconds that one call of the step hook takes, best of five."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["HADAR_RUN_DIR"] = directory
        sys.path.insert(0, str(ROOT))
        from slurm_hadar.runtime.inject import _hadar_progress

        optimizer = object()
        timer = timeit.Timer(lambda: _hadar_progress.count_step(optimizer, (), {}))
        return min(timer.repeat(5, 200_000)) / 200_000 * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=1.0, help="work per step beside the optimizer (0: none)")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "token").write_text("0" * 64)
        for turn in range(args.rounds):
            order = (False, True) if turn % 2 == 0 else (True, False)
            found = {agent: measure(args.step_ms / 1000, args.seconds, agent, Path(directory)) for agent in order}
            pairs.append((found[False], found[True]))
    bare, measured = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    result = {
        "step_ms": args.step_ms,
        "rounds": args.rounds,
        "steps_per_s_bare": round(bare, 1),
        "steps_per_s_measured": round(measured, 1),
        "ratio": round(statistics.median(m / b for b, m in pairs), 5),
        "hook_us": round(hook_us(), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
