"""Why a run failed: which line of the user's, and what to do about it."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.problems import shown
from amp_migrate.verify.copies import CopiedProject, size_in_words
from amp_migrate.verify.traces import Failure

_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<path>.+)", line (?P<line>\d+)(?:, in .+)?')
_KEPT_LINES = 20
_LONGEST = 300
# Once there is a process group, torch puts its rank before each line of an error.
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
# What the other ranks say when one of them has gone.
_CONSEQUENCE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|DistBackendError|failed to connect|"
    r"DistNetworkError|Socket Timeout|store->get|wait timeout"
)
_WANTS_LAUNCH = re.compile(
    r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected|"
    r"KeyError: '(?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT|LOCAL_WORLD_SIZE)'"
)
_PORT_IS_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_WANTS_GPU = re.compile(r"cuda|nccl|\bgpus?\b|nvidia|accelerator|device_ids|(?:division|modulo) by zero", re.IGNORECASE)
GLOO_AT_EXIT = "terminate called without an active exception"


@dataclass(frozen=True)
class Output:
    """What one process wrote to standard error, and its exit status; None if it was ended from here.

    The end of what it wrote to standard output tells where a script prints its errors there.
    """

    stderr: str
    status: int | None
    stdout: str = ""


def ended_well(output: Output, *, recorded: bool) -> bool:
    """Whether a process ended as it should.

    A thread of gloo can abort the interpreter while it shuts down, when all is done and recorded.
    """
    if output.status == 0:
        return True
    return (
        recorded and output.status == -signal.SIGABRT and GLOO_AT_EXIT in output.stderr and _HEAD not in output.stderr
    )


def wants_launch(failure: Failure) -> bool:
    """Whether the script looks for what torchrun sets."""
    return bool(_WANTS_LAUNCH.search(failure.message) or _WANTS_LAUNCH.search(failure.output))


def port_was_taken(failure: Failure) -> bool:
    """Whether another program took the port that the processes were to meet at."""
    return bool(_PORT_IS_TAKEN.search(failure.message) or _PORT_IS_TAKEN.search(failure.output))


def wants_gpu(failure: Failure) -> bool:
    """Whether a run may have failed because there is no GPU."""
    return bool(_WANTS_GPU.search(f"{failure.message}\n{failure.text}"))


def first_cause(outputs: Sequence[Output], order: Sequence[int]) -> Output:
    """Of processes that failed together, the one that the others failed because of."""
    failed = [outputs[number] for number in order if outputs[number].status]
    own = [output for output in failed if not _CONSEQUENCE.search("\n".join(output.stderr.splitlines()[-5:]))]
    return (own or failed or list(outputs))[0]


def failure_of(
    output: Output,
    project: CopiedProject,
    copy: Path,
    python: str,
    before: Callable[[Path], str | None] = lambda path: None,
) -> Failure:
    """Say why a process failed.

    Args:
        output: of the process.
        project: what it ran a copy of.
        copy: that copy.
        python: the interpreter, as the user would name it.
        before: the text that a migrated file had before; None for files that were not migrated.
    """
    stderr = _RANK.sub("", output.stderr)
    text = _renamed(stderr, project, copy)
    lines = text.rstrip().splitlines()
    tail = "\n".join(lines[-_KEPT_LINES:])
    if output.status is not None and output.status < 0:
        return Failure(_signalled(-output.status), output=tail)
    if _HEAD not in text and not _syntax_error(lines):
        return _plain_end(output, lines, tail)
    block = text.rpartition(_HEAD)[2].strip("\n").splitlines() or lines
    message, kind = _last_words(block)
    path, number, source = _place(stderr, project, copy)
    advice = _advice(kind, message, python, project)
    if path is not None and number is not None and (old := before(path)) is not None:
        new = project.within(copy, path).read_text(encoding="utf-8", errors="replace")
        earlier = _line_before(old, new, number)
        if earlier is None:
            advice = f"{advice}; line {number} is one of the migrated file"
        number = earlier or number
    return Failure(_shortened(message) + advice, path, number, source, tail)


def no_backward(output: Output, project: CopiedProject, copy: Path) -> Failure:
    """The script came to its end and trained nothing."""
    tail = "\n".join(_renamed(output.stderr, project, copy).rstrip().splitlines()[-_KEPT_LINES:])
    message = (
        "it ended without a single backward call; does it need other arguments to train (give them after --), or data "
        "that is not there? Or does it resume from the checkpoint of a run that is complete (move that away)?"
    )
    return Failure(message, output=tail)


def out_of_time(seconds: float, made: int, output: str) -> Failure:
    """The time was up after so many backward calls; another time it would be some more or fewer."""
    far = "some of its backward calls" if made else "no backward call"
    advice = "ask for fewer --steps" if made else "give it less to do before it trains"
    message = f"it had made {far} at its time limit of {seconds:g} s; allow more with --timeout, or {advice}"
    return Failure(message, output=output)


def stuck(made: int, output: str) -> Failure:
    """No process began another step for so long that none would."""
    return Failure(
        f"it came to a standstill {'after some of its backward calls' if made else 'before its first backward call'}",
        output=output,
    )


def out_of_memory(bound: int, output: str) -> Failure:
    """The bound on memory was reached."""
    return Failure(f"it took more than {size_in_words(bound)} of memory; --memory allows more", output=output)


def apart(first: int, output: str) -> Failure:
    """One process had ended long before the others."""
    message = (
        f"rank {first} ended a minute before the others, which went on or waited for it: the ranks did not make the "
        "same number of steps"
    )
    return Failure(message, output=output)


def _renamed(text: str, project: CopiedProject, copy: Path) -> str:
    """The text with the user's own folder in place of the copy."""
    return text.replace(str(copy), str(project.root))


def _signalled(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = "; the system may have been out of memory" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"


def _plain_end(output: Output, lines: Sequence[str], tail: str) -> Failure:
    """An end without a traceback: the script itself chose the status."""
    last = _shortened(lines[-1]) if lines else ""
    if output.status == 2 and any(line.startswith("usage:") for line in lines):
        return Failure(f"{last}; give the script's own arguments after --", output=tail)
    printed = output.stdout.rstrip().splitlines()
    said = f": {last}" if last else ", and said nothing on standard error"
    if printed:
        said += f"; the last that it printed: {_shortened(printed[-1])}"
    return Failure(f"it ended with status {output.status}{said}", output=tail)


def _shortened(line: str) -> str:
    """A line that fits into a message: some logs have very long ones."""
    line = line.strip()
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} [...]"


def _syntax_error(lines: Sequence[str]) -> bool:
    """Whether Python could not compile the script, which it says without a traceback."""
    return bool(lines) and re.match(r"(?:Syntax|Indentation|Tab)Error: ", lines[-1]) is not None


def _last_words(block: Sequence[str]) -> tuple[str, str]:
    """The line that names the error, and the error's class."""
    for index, line in enumerate(block):
        if line and not line.startswith(" ") and (match := re.match(r"([\w.]+)(?::|$)", line)):
            # A message of several lines says most in the first, and what follows may be the interpreter's shutdown.
            following = next((item.strip() for item in block[index + 1 :] if item.strip()), "")
            words = f"{line.strip()} {following}" if line.endswith(":") and following else line.strip()
            return words, match[1].rpartition(".")[2]
    return (block[-1].strip() if block else "it failed"), ""


def _place(text: str, project: CopiedProject, copy: Path) -> tuple[Path | None, int | None, str]:
    """The innermost line of the project in the last traceback; in an earlier one if that has none."""
    for block in reversed(text.split(_HEAD)):
        lines = block.splitlines()
        for index in range(len(lines) - 1, -1, -1):
            match = _FRAME.fullmatch(lines[index])
            if match is None:
                continue
            path = project.original(copy, _absolute(match["path"], project, copy))
            if path is not None and "site-packages" not in path.parts:
                source = lines[index + 1].strip() if index + 1 < len(lines) else ""
                return path, int(match["line"]), "" if source.startswith("File ") else source
    return None, None, ""


def _absolute(name: str, project: CopiedProject, copy: Path) -> Path:
    return project.within(copy, project.cwd) / name


def _line_before(old: str, new: str, number: int) -> int | None:
    """Where a line of the migrated text was before; None if it is new."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for start, new_start, size in matcher.get_matching_blocks():
        if new_start <= number - 1 < new_start + size:
            return start + number - new_start
    return None


def _advice(kind: str, message: str, python: str, project: CopiedProject) -> str:
    if kind in ("ModuleNotFoundError", "ImportError"):
        return f" (install it for {python}, where the script runs, or name another Python with --python)"
    if kind == "FileNotFoundError":
        folder = project.cwd.relative_to(project.root).as_posix()
        within = "" if folder == "." else f" the folder {folder} of"
        return f"; it ran in{within} a copy of {shown(project.root)}"
    if kind == "OutOfMemoryError":
        return "; a smaller batch may do (give the script's own arguments after --)"
    if kind in ("EOFError",) and "EOF when reading a line" in message:
        return "; it reads standard input, and has none here"
    return ""
