"""Models of growing size inside one budget: exact fp32 AdamW from disk, peak memory that does not grow with them.

    python benchmarks/memory_flat.py --memory 6GiB --models gpt2-medium gpt3-xl gpt3-2.7b

Each model trains in a process of its own (`single_device.py`). Prints one JSON line last.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["gpt2-medium", "gpt3-xl", "gpt3-2.7b"])
    parser.add_argument("--memory", default="6GiB")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--examples", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args()
    runs = {}
    for model in arguments.models:
        command = [sys.executable, str(Path(__file__).with_name("single_device.py")), "--model", model]
        for name in ("memory", "steps", "examples", "length"):
            command += [f"--{name}", str(getattr(arguments, name))]
        if arguments.store:
            command += ["--store", str(arguments.store)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        run = json.loads(output.splitlines()[-1])
        keys = ("parameters", "peak_rss_gib", "losses", "step_s", "planned_step_s", "read_gb", "written_gb")
        runs[model] = {key: run[key] for key in keys}
        print(f"{model}: {runs[model]}", flush=True)
    print(json.dumps({"benchmark": "memory_flat", "memory": arguments.memory, "models": runs}))


if __name__ == "__main__":
    main()
