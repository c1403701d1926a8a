"""CPU time and peak memory of the command line, start-up included.

    python benchmarks/command_line.py [SCRIPT ...]

Without scripts, those of ``fixtures/runnable``. Each command runs as a process of its own; the smallest of three runs
counts. ``ast.parse`` of the same file in a bare interpreter is printed beside it, as a measure of the machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BARE = "import ast, sys; ast.parse(open(sys.argv[1], 'rb').read())"


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak memory in MiB of the best of three runs."""
    best = (float("inf"), 0.0)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
        best = min(best, (usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return best


def main() -> None:
    tool = [sys.executable, "-m", "amp_migrate"]
    scripts = [Path(name) for name in sys.argv[1:]]
    if not scripts:
        scripts = sorted(path.parent / "train.py" for path in (ROOT / "fixtures/runnable").glob("*/expect.toml"))
    seconds, memory = measure([*tool, "--help"])
    print(f"{'--help':<44} {seconds:6.2f} s  {memory:5.0f} MiB")
    for script in scripts:
        if not script.exists():
            continue
        seconds, memory = measure([*tool, str(script), "--ddp"])
        bare, _ = measure([sys.executable, "-c", BARE, str(script)])
        lines = script.read_text(encoding="utf-8", errors="replace").count("\n")
        name = str(script.relative_to(ROOT) if script.is_relative_to(ROOT) else script)
        print(f"{name:<44} {seconds:6.2f} s  {memory:5.0f} MiB  {lines:5} lines  x{seconds / bare:.0f} of ast.parse")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
