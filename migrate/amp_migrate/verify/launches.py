"""A command that starts a script in several processes, as the user types it: what it says about them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from amp_migrate.problems import UserError

How = Literal["torchrun", "launch", "python"]
"""``torchrun`` or ``python -m torch.distributed.run``; ``torch.distributed.launch``, which gives each process
``--local-rank``; the script itself, which starts its processes by itself."""

_MODULES: Mapping[str, How] = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "launch"}
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?(?:\.exe)?")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# Where a shell would do something before the command is run.
_SHELL = re.compile(r"&&?|\|\|?|;|\d?[<>].*")
_WITH_VALUE = (
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--max-restarts", "--monitor-interval"),
    *("--start-method", "--event-log-handler", "--role", "--log-dir", "-r/--redirects", "-t/--tee"),
    *("--local-ranks-filter", "--node-rank", "--master-addr", "--master-port", "--local-addr", "--logs-specs"),
    *("--numa-binding", "--signals-to-handle", "--shutdown-timeout"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
)
_FLAGS = ("--standalone", "--virtual-local-rank")
_KNOWN = (
    "torchrun, python -m torch.distributed.run, python -m torch.distributed.launch and python SCRIPT are understood"
)
_LARGEST = 64
_LOCAL_RANK = re.compile(rb"""add_argument\(\s*["'](--local[-_]rank)["']""")


@dataclass(frozen=True)
class Launch:
    """What a command says.

    Attributes:
        how: what starts the processes.
        script: the script, as it is named there, or the module.
        arguments: those of the script.
        processes: how many; None where the script decides.
        environment: the variables that are set for it.
        is_module: whether ``script`` is a module's name, as after ``-m``.
    """

    how: How
    script: str
    arguments: tuple[str, ...] = ()
    processes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    is_module: bool = False

    def of_rank(self, rank: int) -> tuple[str, ...]:
        """The arguments that the process of this rank gets."""
        own = (f"--local-rank={rank}",) if self.how == "launch" else ()
        return (*own, *self.arguments)

    def starts(self, script: Path, module: str) -> bool:
        """Whether it starts this script, which has this name as a module."""
        if self.is_module:
            return self.script in (module, module.removesuffix(".__main__"))
        return Path(self.script).name == script.name


def parse(command: str) -> Launch:
    """Read a command such as ``torchrun --nproc-per-node 4 train.py --epochs 1``.

    Raises:
        UserError: it is none of those that are understood.
    """
    words = _words(command)
    environment = {}
    while words and (match := _VARIABLE.fullmatch(words[0])):
        environment[match[1]] = match[2]
        words = words[1:]
    if not words:
        raise _refused(command, f"it names no program; {_KNOWN}")
    program, rest = Path(words[0]).name, words[1:]
    if program == "torchrun":
        return _torchrun(command, "torchrun", rest, environment)
    if not _PYTHON.fullmatch(program):
        raise _refused(command, f"{program} is not known; {_KNOWN}")
    while rest and rest[0] == "-u":
        rest = rest[1:]
    if len(rest) > 1 and rest[0] == "-m" and rest[1] in _MODULES:
        return _torchrun(command, _MODULES[rest[1]], rest[2:], environment)
    if len(rest) > 1 and rest[0] == "-m":
        if rest[1].partition(".")[0] in ("accelerate", "deepspeed", "torch", "horovod"):
            raise _refused(command, f"{rest[1]} is not known; {_KNOWN}")
        return Launch("python", rest[1], tuple(rest[2:]), environment=environment, is_module=True)
    if not rest or rest[0].startswith("-"):
        what = f"python's option {rest[0]} is not known" if rest else "it names no script"
        raise _refused(command, f"{what}; {_KNOWN}")
    return Launch("python", rest[0], tuple(rest[1:]), environment=environment)


def local_rank_option(texts: Iterable[bytes]) -> str:
    """The option for its local rank that a script declares, by the texts of its modules; empty where it has none."""
    return next((match[1].decode() for text in texts if (match := _LOCAL_RANK.search(text))), "")


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise _refused(command, f"it cannot be split into words: {str(error).lower()}") from error
    for word in words:
        if _SHELL.fullmatch(word) or re.search(r"\$[\w({]|`", word):
            raise _refused(command, f"{word} is for a shell; write what it stands for")
    return words


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and do not exit."""
        raise ValueError(message)


def _parser() -> _Parser:
    # As torch's own: both spellings of a name, and abbreviations.
    parser = _Parser(add_help=False)
    for names in _WITH_VALUE:
        parser.add_argument(*_spelled(names))
    for name in _FLAGS:
        parser.add_argument(*_spelled(name), action="store_true")
    parser.add_argument("--nnodes", default="1")
    parser.add_argument(*_spelled("--nproc-per-node"), default="1")
    parser.add_argument(*_spelled("-m/--module"), action="store_true")
    parser.add_argument(*_spelled("--no-python"), action="store_true")
    parser.add_argument(*_spelled("--run-path"), action="store_true")
    parser.add_argument(*_spelled("--use-env"), action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _spelled(names: str) -> list[str]:
    found = names.split("/")
    return [*found, *(f"--{name[2:].replace('-', '_')}" for name in found if "-" in name[2:] and name[:2] == "--")]


def _torchrun(command: str, how: How, words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    try:
        found = _parser().parse_args(words)
    except ValueError as error:
        raise _refused(command, str(error).replace("training_script", "the script")) from error
    for unknown in ("no_python", "run_path"):
        if getattr(found, unknown):
            raise _refused(command, f"--{unknown.replace('_', '-')} starts no script that could be compared")
    if found.nnodes.partition(":")[0] != "1":
        raise _refused(command, "all processes are started on this machine: give it --nnodes 1")
    return Launch(
        "launch" if how == "launch" and not found.use_env else "torchrun",
        found.training_script,
        tuple(found.training_script_args),
        _count(command, found.nproc_per_node),
        environment,
        is_module=found.module,
    )


def _count(command: str, text: str) -> int:
    if not text.isdigit():
        raise _refused(command, f"--nproc-per-node {text} depends on the machine: give a number")
    if not 2 <= int(text) <= _LARGEST:
        raise _refused(command, f"--nproc-per-node {text}: there have to be 2 to {_LARGEST} processes to compare")
    return int(text)


def _refused(command: str, why: str) -> UserError:
    return UserError(f"--launch {shlex.quote(command)}: {why}")
