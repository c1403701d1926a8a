"""Commands as whole processes on one core: their time of the processor and their peak memory."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Command:
    """What is measured.

    Attributes:
        name: as printed.
        call: the command.
        before: what is removed before each run, so that it starts without a cache.
        seconds: of each run, of the processor.
        megabytes: the largest peak of memory.
    """

    name: str
    call: list[str]
    before: Path | None = None
    seconds: list[float] = field(default_factory=list)
    megabytes: float = 0.0

    def run(self) -> None:
        """Runs it once; the first core is its only one."""
        if self.before is not None:
            shutil.rmtree(self.before, ignore_errors=True)
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self.call, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=_on_one_core, env=_environment()
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode not in (0, 1):
                errors.seek(0)
                raise SystemExit(f"{' '.join(self.call)} failed: {errors.read()[-2000:].decode(errors='replace')}")
        self.seconds.append(usage.ru_utime + usage.ru_stime)
        self.megabytes = max(self.megabytes, usage.ru_maxrss / 1024)


def _on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _environment() -> dict[str, str]:
    return {**os.environ, "RAYON_NUM_THREADS": "1"}


def cpu_model() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*: (.*)", text)
    return found[1] if found else platform.processor()


def head(trees: list[str], runs: int) -> str:
    """What every table begins with: when, on what machine, over what."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"- {time.strftime('%Y-%m-%d')}, {cpu_model()}, one core of {os.cpu_count()}, load average {load}"
    return f"{machine}\n- Python {sys.version.split()[0]}; {'; '.join(trees)}; best of {runs} runs\n"


def size(folder: Path) -> tuple[int, int]:
    """Number of Python files below a folder, and of their lines."""
    files = list(folder.rglob("*.py"))
    return len(files), sum(path.read_bytes().count(b"\n") for path in files)
