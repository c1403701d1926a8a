"""``python -m amp_runtime.apex train.py ARGS``: run a script with the drop-in under the name ``apex``."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from amp_runtime.apex import install


def main() -> None:
    """Read the command line, put the drop-in in place, and run the script as ``python`` would."""
    parser = argparse.ArgumentParser(
        prog="python -m amp_runtime.apex",
        usage="%(prog)s [-h] [-m] SCRIPT [ARGS ...]",
        description="Run a script with amp_runtime's drop-in under the name `apex`, in libraries that it imports too.",
        epilog="In several processes: torchrun --nproc-per-node 2 -m amp_runtime.apex train.py ARGS",
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module, as for `python -m`")
    parser.add_argument("script", metavar="SCRIPT", help="the file to run, or the module with -m")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="handed to the script")
    options = parser.parse_args()
    if not options.module and not Path(options.script).is_file():
        parser.error(f"there is no file {options.script!r}; give the script to run, or -m and the name of a module")
    if not options.module and not getattr(sys.flags, "safe_path", False):
        # `python -m` put the working directory first; `python train.py` puts the folder of the script there.
        sys.path[0] = str(Path(options.script).resolve().parent)
    install()
    sys.argv = [options.script, *options.arguments]
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
