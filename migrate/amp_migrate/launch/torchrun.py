"""A shell command that starts a training script, as the ``torchrun`` command that starts it in several processes.

Words are found with their places, and only those that start the script are replaced: quotes, variables, redirections
and arguments stay letter for letter. What is not a plain start of a known script is left alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_TOKEN = re.compile(
    r"""
    (?P<blank>\s+)
    | (?P<end>&&|\|\||[;|()]|(?<!>)&(?!>))
    | (?P<word>(?:
        \\.
        | '[^']*'
        | "(?:\\.|[^"\\])*"
        | \$\([^()]*\) | \$\{[^}]*\} | `[^`]*`
        | (?<=>)& | &(?=>)
        | [^\s;|()&\\'"`$]
        | [\\'"`$]
      )+)
    """,
    re.VERBOSE,
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_VARIABLE = re.compile(r"\$(?:\w+|\{[^}]*\}|\([^()]*\)|[@*])")
_PLAIN_PYTHON = re.compile(r"python3?(?:\.exe)?")
_PYTHON = re.compile(
    r"(?:.*/)?python[\d.]*(?:\.exe)?|\$[{(]?(?:\w+_)?(?:PYTHON|PY)\d?(?:_?(?:BIN|EXE|CMD|EXEC))?[)}]?", re.IGNORECASE
)
_EVALUATION = re.compile(r"--?(?:eval|evaluate|evaluation|test|inference|predict)(?:[_-]only)?")
_EVALUATION_MODE = re.compile(r"(?:benchmark-)?(?:eval|test|infer|predict)")
_QUOTED = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'([^']*)'")

# Commands that speak of a script without starting it.
_NO_START = frozenset(
    "echo printf cat less head tail grep pgrep pkill kill killall rm cp mv ls vim vi nano git find sed awk which man "
    "chmod scp rsync touch diff wc source alias".split()
)
_MPI = frozenset({"mpirun", "mpiexec", "horovodrun", "orterun"})
_SHELLS = frozenset({"bash", "sh", "zsh"})
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
# Launchers of one process a device whose options torchrun has too.
_LAUNCHERS = frozenset({"torch.distributed.launch", "apex.parallel.multiproc", "multiproc"})
_LAUNCHER_VALUES = frozenset(
    "nproc-per-node nnodes node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts "
    "monitor-interval start-method role log-dir redirects tee".split()
)
_LAUNCHER_FLAGS = frozenset({"no-python", "standalone", "run-path"})
# Options that say where the processes meet; without them it is one port of the machine.
_MEETING = ("--standalone", "--master-", "--rdzv-", "--nnodes", "--node-rank")
_NO_LOCAL_RANK = "torchrun passes no --local_rank: it sets LOCAL_RANK"
_ACCELERATE_FLAGS = frozenset({"multi-gpu", "cpu", "use-deepspeed", "use-fsdp", "tpu", "same-network", "quiet"})


@dataclass(frozen=True)
class _Word:
    start: int
    end: int
    text: str

    @property
    def bare(self) -> str:
        """The word without its quotes."""
        return re.sub(r"[\"']", "", self.text)


@dataclass
class Start:
    """One start of a script in a text.

    Attributes:
        first: where the words begin that torchrun replaces.
        last: where they end.
        code: what stands there instead.
        script: what is started.
        notes: what to look at.
        rank: how each of the processes that torch.distributed.launch starts is told its rank, where that starts them.
    """

    first: int
    last: int
    code: str
    script: Path
    notes: list[str] = field(default_factory=list)
    rank: Literal["", "option", "environment"] = ""

    @property
    def is_whole(self) -> bool:
        """Whether the number of processes is known, and nothing else is left to do by hand."""
        count = re.search(r"--nproc-per-node[ =](\S+)", self.code)
        return count is not None and count[1] != "N" and set(self.notes) <= {_NO_LOCAL_RANK}


Find = Callable[[str, Sequence[Path]], "Path | None"]


@dataclass
class Shell:
    """Reads the commands of one file or block in order.

    Attributes:
        script: finds the script that a word means, from the folders that the command may be given in.
        module: finds the one that ``-m`` means.
        folders: those, the most likely first.
        text: the whole file, for what its variables stand for.
    """

    script: Find
    module: Find
    folders: list[Path]
    text: str = ""

    def starts(self, text: str) -> list[Start]:
        """The starts of known scripts in a text."""
        found: list[Start] = []
        for words, end in _commands(text):
            if words[0].text == "cd" and len(words) > 1:
                self._change(words[1].bare)
                continue
            if any(word.bare in ("torchrun", "torch.distributed.run") for word in words):
                continue
            start = self._start(words)
            if start is not None:
                found.append(_meeting_alone(start) if end == "&" else start)
                continue
            for word in words:
                found.extend(self._within(word))
        return found

    def _change(self, target: str) -> None:
        if "$" in target or target.startswith(("/", "~", "-")):
            return
        reached = [folder / target for folder in self.folders if (folder / target).is_dir()]
        self.folders = list(dict.fromkeys([*(folder.resolve() for folder in reached), *self.folders]))

    def _within(self, word: _Word) -> Iterator[Start]:
        """Commands in quotes: ``CMD="python train.py"``, ``bash -c "..."``."""
        for match in _QUOTED.finditer(word.text):
            group = 1 if match[1] is not None else 2
            if " " not in match[group]:
                continue
            offset = word.start + match.start(group)
            for start in self.starts(match[group]):
                start.first += offset
                start.last += offset
                yield start

    def _first_within(self, word: _Word) -> Start | None:
        return next(self._within(word), None)

    def _start(self, words: list[_Word]) -> Start | None:
        command = next((item for item in words if not _ASSIGNMENT.match(item.text)), None)
        if command is None or command.bare in _NO_START:
            return None
        for index, word in enumerate(words):
            if _PYTHON.fullmatch(word.bare) and not _ASSIGNMENT.match(word.text):
                return self._python(words, index)
            if word.bare == "accelerate" and [item.bare for item in words[index + 1 : index + 2]] == ["launch"]:
                return self._accelerate(words, index)
        # ``./train.py``; without the dots a path alone is rather a mention than a command.
        script = self.script(command.bare, self.folders) if re.match(r"\.{1,2}/", command.bare) else None
        if script is None:
            return None
        prefix = words[: words.index(command)]
        code = " ".join(["torchrun", *_processes([], prefix), command.text])
        return _noted(
            Start(command.start, command.end, code, script), prefix, words[words.index(command) + 1 :], self.text
        )

    def _python(self, words: list[_Word], index: int) -> Start | None:
        python = words[index]
        options: list[str] = []
        given: list[str] = []
        notes: list[str] = []
        at = index + 1
        is_module = False
        while at < len(words) and words[at].text.startswith("-"):
            option = words[at].text
            at += 1
            if option == "-m":
                is_module = True
                break
            if option in ("-", "-c", "-h", "--help", "-V", "--version"):
                return None
            options.append(option)
            if option in _WITH_VALUE and at < len(words):
                options.append(words[at].text)
                at += 1
        if at >= len(words):
            return None
        stands_for = self._launcher_in(words[at]) if not is_module else None
        if stands_for is not None and at + 1 < len(words):
            notes.append(f"{words[at].text} holds an older launcher, whose place torchrun takes")
            given = stands_for
            at += 1
        target = words[at]
        launcher = target.bare if is_module else Path(target.bare).stem if target.bare.endswith("multiproc.py") else ""
        rank: Literal["", "option", "environment"] = ""
        if launcher in _LAUNCHERS:
            read = _launcher_options(words, at + 1)
            if read is None:
                return None
            given, is_module, at = read
            if launcher != "torch.distributed.launch" and not given:
                given = ["--nproc-per-node gpu"]
            elif launcher != "torch.distributed.launch":
                pass
            elif any(item.text in ("--use_env", "--use-env") for item in words):
                rank = "environment"
            else:
                rank = "option"
                notes.append(_NO_LOCAL_RANK)
            target = words[at]
        script = (self.module if is_module else self.script)(target.bare, self.folders)
        if script is None and launcher in _LAUNCHERS:
            # ``--no_python bash -c "python train.py"``: the launcher is replaced, not what it launches.
            inner = [
                item for item in (self._start(words[at:]), *map(self._first_within, words[at:])) if item is not None
            ]
            script = inner[0].script if inner else None
        if script is None:
            return None
        mpi = next((position for position in range(index) if words[position].bare in _MPI), None)
        place = index if mpi is None else mpi
        if place and words[place - 1].bare in _SHELLS:
            place -= 1  # ``bash python train.py``: the shell would read what follows as its own script
        prefix = words[:place]
        first = words[place]
        if mpi is not None:
            given = given or _mpi_processes(words[mpi:index])
            notes.append(f"torchrun starts the processes, {words[mpi].bare} must not")
        run = ["torchrun"] if _PLAIN_PYTHON.fullmatch(python.text) else [python.text, "-m", "torch.distributed.run"]
        run += _processes(given, prefix)
        # Its processes are unbuffered anyway; other options of Python have to be given to each.
        passed = [option for option in options if option != "-u"]
        run += ["--no-python", python.text, *passed] if passed else []
        run += ["-m", target.text] if is_module else [target.text]
        start = Start(first.start, target.end, " ".join(run), script, notes, rank)
        return _noted(start, prefix, words[at + 1 :], self.text)

    def _launcher_in(self, word: _Word) -> list[str] | None:
        """The options for torchrun where a variable of the file holds an older launcher, as in ``python $RUN a.py``."""
        if not _VARIABLE.fullmatch(word.bare):
            return None
        name = word.bare.strip("${()}")
        for match in re.finditer(rf"\b{re.escape(name)}\+?=(.*)", self.text):
            if any(launcher in match[1] for launcher in _LAUNCHERS):
                count = re.search(r"nproc[_-]per[_-]node[= ]+([^\s\"']+)", match[1])
                return [f"--nproc-per-node {count[1] if count else 'N'}"]
        return None

    def _accelerate(self, words: list[_Word], index: int) -> Start | None:
        at = index + 2
        given: list[str] = []
        is_module = False
        while at < len(words) and words[at].text.startswith("-"):
            name, _, value = words[at].text.partition("=")
            name = name.lstrip("-").replace("_", "-")
            at += 1
            if name in ("m", "module"):
                is_module = True
            elif name not in _ACCELERATE_FLAGS and not value and at < len(words):
                value = words[at].text
                at += 1
            if name == "num-processes":
                given = [f"--nproc-per-node {value}"]
        if at >= len(words):
            return None
        target = words[at]
        script = (self.module if is_module else self.script)(target.bare, self.folders)
        if script is None:
            return None
        run = ["torchrun", *_processes(given, words[:index]), *(["-m"] if is_module else []), target.text]
        notes = ["accelerate's options are left out"]
        start = Start(words[index].start, target.end, " ".join(run), script, notes)
        return _noted(start, words[:index], words[at + 1 :], self.text)


def _commands(text: str) -> Iterator[tuple[list[_Word], str]]:
    """The words of each simple command, and what ends it."""
    words: list[_Word] = []
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "word":
            if match[0].startswith("#"):
                break
            words.append(_Word(match.start(), match.end(), match[0]))
        elif match.lastgroup == "end":
            if words:
                yield words, match[0]
            words = []
    if words:
        yield words, ""


def _meeting_alone(start: Start) -> Start:
    """The start of what runs beside the commands below: its processes meet at a port that is free."""
    has_others = re.search(r"--nproc-per-node[ =]\S+ +[\"']?\$\S+ ", start.code)  # options in a variable
    if not has_others and not any(option in start.code for option in _MEETING):
        start.code = start.code.replace("--nproc-per-node", "--standalone --nproc-per-node", 1)
    return start


def _launcher_options(words: list[_Word], at: int) -> tuple[list[str], bool, int] | None:
    """The options of an older launcher as torchrun spells them, whether a module follows, and where the script is."""
    given: list[str] = []
    is_module = False
    while at < len(words):
        text = words[at].text
        if _VARIABLE.fullmatch(words[at].bare) and at + 1 < len(words):
            given.append(text)
            at += 1
            continue
        if not text.startswith("-"):
            return given, is_module, at
        name, equals, value = text.partition("=")
        name = name.lstrip("-").replace("_", "-")
        at += 1
        if name in ("m", "module"):
            is_module = True
        elif name in _LAUNCHER_FLAGS:
            given.append(f"--{name}")
        elif name in _LAUNCHER_VALUES:
            if not equals:
                if at >= len(words):
                    return None
                equals, value = " ", words[at].text
                at += 1
            given.append(f"--{name}{equals}{value}")
        elif name != "use-env":
            return None
    return None


def _processes(given: Sequence[str], prefix: Sequence[_Word]) -> list[str]:
    """The options for torchrun, with a number of processes."""
    if any("nproc-per-node" in item or item.startswith(("$", '"$')) for item in given):
        return list(given)
    count = len(_visible(prefix) or [])
    return [f"--nproc-per-node {count if count > 1 else 'N'}", *given]


def _visible(prefix: Sequence[_Word], text: str = "") -> list[str] | None:
    """The devices that CUDA_VISIBLE_DEVICES lists before the command, or by a variable that a text sets once."""
    word = _of_devices(prefix)
    value = word.bare.partition("=")[2] if word is not None else ""
    if re.fullmatch(r"\$(?:\w+|\{\w+\})", value):
        name = value.strip("${}")
        given = re.findall(rf"^[ \t]*(?:export[ \t]+)?{name}=([^\s;#]*)", text, re.MULTILINE)
        value = given[0].strip("\"'") if len(given) == 1 else ""
    return [item for item in value.split(",") if item] if re.fullmatch(r"[\d,]+", value) else None


def _of_devices(prefix: Sequence[_Word]) -> _Word | None:
    return next((word for word in prefix if word.bare.startswith("CUDA_VISIBLE_DEVICES=")), None)


def _mpi_processes(words: Sequence[_Word]) -> list[str]:
    for option, value in itertools.pairwise(words):
        if option.text in ("-np", "-n", "--np", "-c"):
            return [f"--nproc-per-node {value.text}"]
    return []


def _noted(start: Start, prefix: Sequence[_Word], arguments: Sequence[_Word], text: str) -> Start | None:
    """The start with what to look at; None where it only asks for help. The text is that of the whole file."""
    texts = [word.text for word in arguments]
    if texts and texts[0] in ("-h", "--help", "[-h]"):
        return None
    if any(text.startswith(("--local_rank", "--local-rank")) for text in texts):
        start.notes = ["take --local_rank away: torchrun sets LOCAL_RANK"]
    if any(word.bare == "srun" for word in prefix):
        start.notes.append("srun must start one torchrun a node: --ntasks-per-node=1")
    if _evaluates(texts):
        start.notes.append("this evaluates, for which one process may be enough")
    _count_devices(start, prefix, text)
    return start


def _count_devices(start: Start, prefix: Sequence[_Word], text: str) -> None:
    """Take CUDA_VISIBLE_DEVICES away where it shows fewer devices than there are processes; else say how many."""
    word, devices = _of_devices(prefix), _visible(prefix, text)
    is_open = "--nproc-per-node N" in start.code
    if word is None:
        above = re.findall(r"^[ \t]*(?:export[ \t]+)?CUDA_VISIBLE_DEVICES=([\d,]+)[\"']?[ \t]*$", text, re.MULTILINE)
        if is_open and len(set(above)) == 1:
            start.notes.append(f"CUDA_VISIBLE_DEVICES={above[0]} stands in this file: it must show N devices")
    elif devices is not None and len(devices) == 1:
        if not is_open:
            start.notes.append("CUDA_VISIBLE_DEVICES shows one device only")
            return
        between = [item.text for item in prefix if word.end <= item.start]
        start.first, start.code = word.start, " ".join([*between, start.code])
        value = "" if word.bare.endswith(f"={devices[0]}") else f" (which is {devices[0]})"
        start.notes.append(f"{word.bare}{value} is left out: it shows one device only")
    elif is_open:
        count = len(devices) if devices is not None else 0
        start.notes.append(f"N is {count}: {word.bare} shows as many" if count else f"{word.bare} must show N devices")


def _evaluates(texts: Sequence[str]) -> bool:
    modes = [value for option, value in itertools.pairwise(texts) if option in ("--mode", "-m", "--phase", "--task")]
    modes += [text.partition("=")[2] for text in texts if text.startswith(("--mode=", "--phase=", "--task="))]
    return any(_EVALUATION_MODE.match(mode) for mode in modes) or any(_EVALUATION.fullmatch(text) for text in texts)


def replaced(text: str, starts: Sequence[Start]) -> str:
    """The text with torchrun in place of each start."""
    for start in sorted(starts, key=lambda item: item.first, reverse=True):
        text = text[: start.first] + start.code + text[start.last :]
    return text
