"""Runs the commands of a page in one shell, in a git repository made for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from doc_pages import ROOT, Block, Command, Order, commands

MARK = "\x1e"
PATIENCE = 900
DEFAULT_FILES = {
    "train.py": "fixtures/runnable/flat_convnet/train.py",
    "project": "fixtures/runnable/trainer_other_files",
    "src/train.py": "fixtures/runnable/vae_loss_function/main.py",
}
"""What a page finds in its repository, unless it says that it starts without."""


@dataclass(frozen=True)
class Shown:
    """A block that is part of what a command printed."""

    text: str
    line: int


@dataclass
class Run:
    """A command that was run, with what is on the page for it, and what came of it."""

    command: Command
    status: int | None = None
    printed: str = ""
    quoted: tuple[Shown, ...] = ()


class Sandbox:
    """The shell script that runs a page, and the folder that it runs in."""

    def __init__(self, folder: Path, skipped: tuple[str, ...]) -> None:
        """Prepare an empty ``folder``; commands that begin with one of ``skipped`` are left out."""
        self.base = folder
        self.folder = folder / "work"
        self.skipped = skipped
        self.runs: list[Run] = []
        self._lines: list[str] = []
        self._given = 0

    def run(self, page: Sequence[Block | Order]) -> list[Run]:
        """Run the commands of a page and return those that it shows."""
        self.folder.mkdir(parents=True)
        if not any(isinstance(part, Order) and part.verb == "empty" for part in page):
            for name, source in DEFAULT_FILES.items():
                self._copy(source, name)
        self._lines.append("git init -q . && git add -A && git commit -q --allow-empty -m start")
        waiting: list[Order] = []
        for part in page:
            if isinstance(part, Order):
                waiting += self._obey(part)
            else:
                self._take(part, waiting)
                waiting = []
        self._collect(self._execute())
        return self.runs

    def _copy(self, source: str, name: str) -> None:
        """Write down that a file or folder of the repository is there from here on."""
        path = ROOT / source
        assert path.exists(), f"{source} is to be copied, and does not exist"
        given = self._keep(path.name)
        if path.is_dir():
            shutil.copytree(path, given, ignore=shutil.ignore_patterns("__pycache__", "expect.toml"))
            self._lines.append(f'mkdir -p "{name}" && cp -R "{given}/." "{name}"')
        else:
            shutil.copy(path, given)
            self._lines.append(f'mkdir -p "$(dirname "{name}")" && cp "{given}" "{name}"')

    def _keep(self, name: str) -> Path:
        self._given += 1
        place = self.base / "given" / str(self._given) / name
        place.parent.mkdir(parents=True)
        return place

    def _obey(self, order: Order) -> list[Order]:
        """Carry out a comment that is about no block; return one that is about the next."""
        if order.verb == "copy":
            source, _, name = order.about.partition(" to ")
            self._copy(source, name or Path(source).name)
        elif order.verb == "run":
            # What the page does not show has to work, or nothing after it means anything.
            self._lines.append(f'{order.about} || {{ echo "line {order.line}: $?"; exit 1; }}')
        elif order.verb != "empty":
            return [order]
        return []

    def _take(self, block: Block, orders: list[Order]) -> None:
        for order in orders:
            if order.verb == "file":
                given = self._keep("file")
                given.write_text(block.text, encoding="utf-8")
                self._lines.append(f'mkdir -p "$(dirname "{order.about}")" && cp "{given}" "{order.about}"')
            elif order.verb == "output":
                assert self.runs, f"line {order.line}: no command was run before"
                self.runs[-1].quoted += (Shown(block.text, block.line),)
        if block.language != "console":
            return
        alone = any(order.verb == "each" for order in orders)
        for command in commands(block):
            if command.text.startswith(self.skipped):
                continue
            number = len(self.runs)
            self.runs.append(Run(command))
            if alone:
                self._lines.append(f'rm -rf "{self.base}/each" && cp -R . "{self.base}/each" && cd "{self.base}/each"')
            self._lines += [f"printf '{MARK}'", "restore_status", command.text, "status=$?"]
            self._lines.append(f"printf '{MARK}%s{MARK}%s{MARK}' {number} $status")
            if alone:
                self._lines.append(f'cd "{self.folder}"')

    def _execute(self) -> str:
        home = self.base / "home"
        home.mkdir()
        script = self.base / "page.sh"
        head = ["restore_status() { return ${status:-0}; }", f'cd "{self.folder}"']
        script.write_text("\n".join([*head, *self._lines]) + "\n", encoding="utf-8")
        environment = os.environ | {
            # The commands of this environment go before those of the machine.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CEILING_DIRECTORIES": str(self.base),
            "GIT_PAGER": "cat",
            "TZ": "UTC",
            # Two processes cannot share one GPU, and pages show what a CPU prints.
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "STEPS": "4",
            # Whether bfloat16 is slow here depends on the processor.
            "PYTHONWARNINGS": "ignore:dtype='auto' is bfloat16",
        }
        for who in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{who}_NAME": "A Reader", f"GIT_{who}_EMAIL": "reader@example.org"}
        for name in ("AMP_OPT_LEVEL", "AMP_DTYPE", "FORCE_COLOR", "PYTHONPATH", "GIT_DIR", "GIT_INDEX_FILE"):
            environment.pop(name, None)
        process = subprocess.Popen(
            ["bash", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
        return printed.decode("utf-8", "replace")

    def _collect(self, printed: str) -> None:
        """Give each command what it printed."""
        found = re.findall(rf"{MARK}([^{MARK}]*){MARK}(\d+){MARK}(\d+){MARK}", printed)
        for text, number, status in found:
            run = self.runs[int(number)]
            run.printed, run.status = text, int(status)
        rest = re.sub(rf"{MARK}[^{MARK}]*{MARK}\d+{MARK}\d+{MARK}", "", printed).strip()
        for run in self.runs:
            if run.status is None:
                run.printed = f"(not run)\n{rest}"


def pattern(shown: list[str]) -> re.Pattern[str]:
    """Return what the lines on a page stand for."""
    wanted = ""
    for line in shown:
        if line.strip() == "...":
            wanted += r"(?:.*\n)*?"
        else:
            wanted += ".*?".join(re.escape(piece) for piece in line.rstrip().split("...")) + "\n"
    return re.compile(wanted, re.MULTILINE)


def stripped(text: str) -> str:
    """Return a text without what nobody sees: space at the ends of lines, and empty lines at its end."""
    lines = [line.rstrip() for line in text.replace("\r", "\n").splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return "".join(line + "\n" for line in lines)
