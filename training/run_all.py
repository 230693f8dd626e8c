"""All stages one after the other, each with a time budget: python -m training.run_all --minutes 600

Every stage resumes from its checkpoint, so this can be stopped and started at any time; --only names the stages to run.
The shares are of the whole budget. One stage at a time, on both cores, niced.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

# stage -> share of the time; latents take what they take (about 8 core-milliseconds per scene)
STAGES = {
    "train_vae": 0.2,
    "latents": 0.0,
    "train_writer": 0.04,
    "train_words": 0.01,
    "train_masks": 0.12,
    "train_clip": 0.1,
    "train_judge": 0.04,
    "train_pictures": 0.49,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=600, help="of the whole run")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=30000, help="cached latents")
    parser.add_argument("--only", nargs="*", choices=STAGES, default=list(STAGES))
    options = parser.parse_args()
    total = sum(STAGES[stage] for stage in options.only)
    for stage in options.only:
        command = ["nice", "-n", "10", sys.executable, "-m", f"training.{stage}"]
        if stage == "latents":
            command += ["--scenes", str(options.scenes)]
        else:
            command += [
                "--minutes",
                f"{options.minutes * STAGES[stage] / total:.2f}",
                "--processes",
                str(options.processes),
            ]
        start = time.time()
        print(" ".join(command[3:]), flush=True)
        subprocess.run(command, check=True)
        print(f"{stage}: {(time.time() - start) / 60:.1f} min", flush=True)


if __name__ == "__main__":
    main()
