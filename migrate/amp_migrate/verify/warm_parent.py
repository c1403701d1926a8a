"""The process that runs are forked from: it imports torch once, and never computes anything.

It is started by the Python that is to run the scripts, as a file, and needs nothing but that Python. Its one argument
is the number of a socket. Each line that comes in there is a JSON object:

- ``{"import": [names]}``, the first: what to import; the answer is ``{"ready": seconds}``, or ``{"unfit": reason}``;
- ``{"branch": [names]}``, with a socket: fork a process like this one, which answers requests on that socket, and
  imports these modules first; the answer is ``{"branched": number}``, and that of the new one as to ``import``;
- ``{"start": job}``: the answer is ``{"started": number}``, or ``{"unfit": reason}`` where a module of the script's has
  the name of one that was imported here. A job has ``argv`` (a script, or ``-m`` and a module, and
  their arguments), ``environment`` (all of it), ``cwd``, ``stdout`` and ``stderr``, and ``whole``: whether the
  interpreter is torn down at the end as always, and not only what the script has made.

``{"ended": [number, status]}`` goes out when such a process ends. What else has become its child is reaped silently.
When nobody is at the other end any more, everything that was forked here is killed.

A process that has threads can only be forked safely where they are idle ones that its libraries start anew, and never
one that has talked to a GPU.
"""

import sys

# What every interpreter has from its start.
_FROM_THE_START = set(sys.modules)

if not getattr(sys.flags, "safe_path", False):
    # The folder of this file is no place to import from.
    del sys.path[0]

# ruff: noqa: E402
import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import tempfile
import threading
import time
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
# Asked whether there is a GPU, torch then asks the driver's library for monitoring, which leaves nothing behind.
_NO_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
# A product of this size is shared out over threads; it may take so many seconds.
_LARGE, _PATIENCE = 1024, 20


def main() -> None:
    """Answer requests until nobody asks any more; in a forked process, run the script."""
    job = _Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
    if job is None:
        # Nothing is left to do, and to tear torch down takes a second.
        os._exit(0)
    _be_the_interpreter(job)


class _Parent:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.started: set[int] = set()
        self.unread = b""
        # Sockets that came with a request.
        self.given: list[int] = []
        here = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
        self.path = [entry for entry in sys.path if entry not in here]
        self.kept = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}

    def serve(self) -> dict[str, Any] | None:
        """Return the job in the process that was forked to do it, and None at the end."""
        # What loses its parent becomes a child of this one, and so is found.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        waking, woken = socket.socketpair()
        for end in (waking, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        before = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            ready, _, _ = select.select([self.control, waking], [], [])
            if waking in ready:
                with contextlib.suppress(BlockingIOError):
                    waking.recv(4096)
            self._reap()
            for request in self._requests() if self.control in ready else ():
                if request is None:
                    self._end_all()
                    return None
                if "import" in request:
                    self._answer(_prepare(request["import"]))
                elif "branch" in request:
                    branch = self._branch()
                    if branch is not None:
                        for end in (waking, woken, self.control):
                            end.close()
                        return branch.grown(request["branch"]).serve()
                elif (name := _hidden(request["start"])) is not None:
                    self._answer({"unfit": f"{name} is a module of the script's, too"})
                elif self._fork(request["start"]):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, before)
                    for end in (waking, woken, self.control):
                        end.close()
                    job: dict[str, Any] = request["start"]
                    return job | {"path": self.path, "kept": self.kept}

    def _branch(self) -> "_Parent | None":
        """The one of the new process, in the new process."""
        control = socket.socket(fileno=self.given.pop())
        number = os.fork()
        if number == 0:
            return _Parent(control)
        control.close()
        self._answer({"branched": number})
        return None

    def grown(self, names: list[str]) -> "_Parent":
        """This one when it has imported more, with what that left in its path and its environment."""
        before = dict(os.environ)
        self._answer(_silently(_prepare, names))
        parent = _Parent(self.control)
        parent.kept |= {name: value for name, value in os.environ.items() if name not in before}
        return parent

    def _requests(self) -> list[dict[str, Any] | None]:
        """What was asked since; None at the end where nobody will ask any more."""
        try:
            data, given, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
            self.given += given
        except ConnectionError:
            data = b""
        *lines, self.unread = (self.unread + data).split(b"\n")
        return [*map(json.loads, lines), *([] if data else [None])]

    def _answer(self, value: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(value).encode() + b"\n")

    def _fork(self, job: dict[str, Any]) -> bool:
        """Whether this is the new process."""
        number = os.fork()
        if number == 0:
            return True
        self.started.add(number)
        self._answer({"started": number})
        return False

    def _reap(self) -> None:
        while True:
            try:
                number, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if number == 0:
                return
            if number in self.started:
                self.started.discard(number)
                self._answer({"ended": [number, os.waitstatus_to_exitcode(status)]})

    def _end_all(self) -> None:
        for number in self.started:
            # Each begins with making itself a group, and may not have come to that.
            for end in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    end(number, signal.SIGKILL)


def _prepare(names: list[str]) -> dict[str, Any]:
    """Import what takes long, and see whether this process can still be forked."""
    began = time.perf_counter()
    added = [name for name in _NO_CUDA if name not in os.environ]
    os.environ.update({name: _NO_CUDA[name] for name in added})
    try:
        for name in names:
            try:
                importlib.import_module(name)
            except ImportError as error:
                if name == "torch":
                    return {"unfit": str(error)}
    except Exception as error:
        return {"unfit": f"{type(error).__name__}: {error}"}
    finally:
        for name in added:
            del os.environ[name]
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return {"unfit": "importing it initialises CUDA"}
    if threading.active_count() > 1 or (len(os.listdir("/proc/self/task")) > 1 and not _computes_when_forked(torch)):
        return {"unfit": "importing it starts threads"}
    # What is here already is never freed, so nothing looks at it again, and its memory stays shared.
    gc.collect()
    gc.freeze()
    return {"ready": time.perf_counter() - began}


def _computes_when_forked(torch: Any) -> bool:
    """Whether the threads are no loss to a forked process: a pool of torch's is begun anew there."""
    number = os.fork()
    if number == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE)
        try:
            weights = torch.ones(_LARGE, _LARGE, requires_grad=True)
            (weights @ weights).relu().sum().backward()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(number, 0)[1] == 0


def _silently(prepare: Callable[[list[str]], dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Prepare; what is printed meanwhile would be missing in the output of each run."""
    with tempfile.TemporaryFile() as printed:
        nowhere = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            found = prepare(names)
            _flush()
        finally:
            os.dup2(nowhere, 1)
            os.close(nowhere)
        return {"unfit": "importing it prints"} if os.fstat(printed.fileno()).st_size else found


def _hidden(job: dict[str, Any]) -> str | None:
    """A module beside the script that its ``import`` would not find, because another of that name is here already."""
    argv, named = job["argv"], job["environment"].get("PYTHONPATH", "").split(os.pathsep)
    first = job["cwd"] if argv[0] == "-m" else os.path.dirname(os.path.join(job["cwd"], argv[0]))
    imported = {name.partition(".")[0] for name in sys.modules} - _FROM_THE_START
    for folder in (first, *(os.path.join(job["cwd"], entry) for entry in named if entry)):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                name: str = entry.name.partition(".")[0]
                is_module = not entry.name.endswith(".dist-info") and (
                    entry.name.endswith((".py", ".so")) or os.path.exists(os.path.join(entry.path, "__init__.py"))
                )
                if name in imported and is_module and not _is_the_same(name, entry.path):
                    return name
    return None


def _is_the_same(name: str, path: str) -> bool:
    """Whether the module that was imported is the one there."""
    found = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(found, str) and os.path.realpath(found).startswith(os.path.realpath(path))


def _be_the_interpreter(job: dict[str, Any]) -> None:
    """Run the script from its start to its exit, as the interpreter does that was started for it."""
    os.setsid()
    for number, path in enumerate((job["stdout"], job["stderr"]), 1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update({**job["kept"], **job["environment"]})
    os.chdir(job["cwd"])
    _forget_the_parent()
    before = set(sys.modules)
    status = 0
    try:
        _run(job["argv"], job["path"])
    except SystemExit as error:
        status = _status(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _complain(error)
        status = 1
    try:
        _end(before)
    finally:
        if not job["whole"]:
            # To tear down every module of torch takes longer than most scripts.
            os._exit(status & 0xFF)
    sys.exit(status)


def _forget_the_parent() -> None:
    """Take a state of one's own where every interpreter has one that nobody else has."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def _run(argv: list[str], path: list[str]) -> None:
    is_module = argv[0] == "-m"
    # A script's own folder is where its imports begin, and a module's the working folder.
    first = os.getcwd() if is_module else os.path.dirname(os.path.abspath(os.path.realpath(argv[0])))
    named = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*dict.fromkeys([*named, *path])]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, first)
    importlib.invalidate_caches()
    sys.argv = argv[is_module:]
    sys.orig_argv = [sys.executable, *argv]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module).update(__builtins__=builtins, __annotations__={})
    if os.environ.get("AMP_VERIFY_RECORD"):
        # As the recorder's sitecustomize does when an interpreter starts.
        importlib.import_module("amp_verify_recorder").start()
    if is_module:
        import runpy

        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
        return
    script = os.path.abspath(argv[0])
    vars(module).update(__file__=script, __cached__=None, __loader__=SourceFileLoader("__main__", script))
    with open(script, "rb") as file:
        source = file.read()
    exec(compile(source, script, "exec", dont_inherit=True), vars(module))


def _status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _complain(error: BaseException) -> None:
    """Print the traceback without the part of it that leads from here to the script."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    with contextlib.suppress(Exception):
        sys.excepthook(type(error), error.with_traceback(trace), trace)


def _end(before: set[str]) -> None:
    """Do what an interpreter does at its end, in that order, as far as the script's own modules go."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush()
        _let_go(before)
    finally:
        _flush()


def _let_go(before: set[str]) -> None:
    """Free what the script's own modules hold: files are written to their end then, and objects finalised."""
    root = os.path.join(os.environ.get("AMP_VERIFY_ROOT") or os.getcwd(), "")
    own = [module for name, module in sys.modules.items() if name not in before and _is_below(module, root)]
    for module in [*reversed(own), sys.modules["__main__"]]:
        values = vars(module)
        for name in list(values):
            if name not in ("__builtins__", "__name__", "__file__"):
                values[name] = None
    gc.collect()


def _is_below(module: types.ModuleType, root: str) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and path.startswith(root)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main()
