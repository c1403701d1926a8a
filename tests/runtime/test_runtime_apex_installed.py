"""The drop-in under the name ``apex``: each test in a process of its own, since the name holds for a whole process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = """
try:
    from apex import amp
    from apex.parallel import DistributedDataParallel
except ImportError as error:
    raise ImportError("Please install apex") from error
import amp_C
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "library.py").write_text(LIBRARY)
    # A clone of Apex beside the script is a package without anything in it, and comes first on the search path.
    (tmp_path / "apex" / "apex").mkdir(parents=True)
    return tmp_path


def test_a_library_finds_the_modules_themselves(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import sys, library, apex, amp_runtime.apex\n"
        "assert apex is amp_runtime.apex and library.amp is amp_runtime.apex.amp\n"
        "assert library.amp_C is amp_runtime.apex.amp_C\n"
        "assert apex.amp.__spec__.name == 'amp_runtime.apex.amp'\n"
        "print(__name__, sys.argv)\n"
    )
    assert "Please install apex" in run(folder, "train.py").stderr
    done = run(folder, "-m", "amp_runtime.apex", "train.py", "-m", "--lr", "1")
    assert done.stdout == "__main__ ['train.py', '-m', '--lr', '1']\n", done.stderr
    done = run(folder, "-m", "amp_runtime.apex", "-m", "train", "-x")
    assert done.stdout.startswith("__main__") and "'-x'" in done.stdout, done.stderr


def test_the_folder_of_the_script_is_searched_and_not_the_working_directory(folder: Path) -> None:
    (folder / "tools").mkdir()
    (folder / "tools" / "beside.py").write_text("")
    (folder / "tools" / "train.py").write_text(
        "import beside\ntry:\n    import library\nexcept ImportError as e: print(e)"
    )
    done = run(folder, "-m", "amp_runtime.apex", "tools/train.py")
    assert done.stdout == "No module named 'library'\n", done.stderr


def test_spawned_processes_have_it_too(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import library, multiprocessing, os\n"
        "def work(queue):\n    queue.put((library.amp.__name__, library.amp_C.__name__))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn'); queue = context.Queue()\n"
        "    child = context.Process(target=work, args=(queue,)); child.start(); child.join()\n"
        "    print(child.exitcode, queue.get() if child.exitcode == 0 else None)\n"
    )
    done = run(folder, "-m", "amp_runtime.apex", "train.py")
    assert done.stdout == "0 ('amp_runtime.apex.amp', 'amp_runtime.apex.amp_C')\n", done.stderr


def test_a_module_that_it_lacks_is_an_import_error_that_names_it(folder: Path) -> None:
    code = (
        "import amp_runtime.apex; amp_runtime.apex.install(); amp_runtime.apex.install()\n"
        "try:\n    import apex.contrib.sparsity\nexcept ModuleNotFoundError as e:\n    print(e.name, e)"
    )
    done = run(folder, "-c", code)
    assert done.stdout.startswith("apex.contrib.sparsity No module named 'apex.contrib.sparsity': amp_runtime.apex")


def test_another_apex_that_was_imported_before_is_an_error(folder: Path) -> None:
    done = run(folder, "-c", "import apex, amp_runtime.apex; amp_runtime.apex.install()")
    assert "RuntimeError: amp_runtime.apex.install() came after `import apex`" in done.stderr


def test_a_script_that_is_not_there_is_an_error_of_the_command_line(folder: Path) -> None:
    done = run(folder, "-m", "amp_runtime.apex", "none.py")
    assert done.returncode == 2 and "there is no file 'none.py'" in done.stderr and "Traceback" not in done.stderr
