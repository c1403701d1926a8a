"""Runs the linter, all rules and those in preview, over much code that nobody wrote for it.

    python benchmarks/lint_robustness.py [--site FOLDER ...] [--seconds 5] [--megabytes 1024] [FOLDER ...]

Without folders: the standard library and those of the most downloaded packages of PyPI that are installed, here or in
a ``--site`` folder. Each mode (O1, O2, O3 in fp16 and bf16) is a process of its own; files in which something is found
are judged again, in another order and by a process that hashes differently. It fails where an exception gets out or a
rule breaks down, a file takes too long, memory grows too large, or the two runs find different things.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from amp_rules.checks import all_checks
from amp_rules.lint import Linter, Mode
from amp_rules.source.text import SourceError, read_source

# The most downloaded ones first, as of 2025; what is not installed is left out.
PACKAGES = """
boto3 urllib3 botocore requests certifi typing_extensions charset_normalizer idna setuptools packaging dateutil
s3transfer six yaml numpy cryptography fsspec pip pydantic cffi pandas attr click google jmespath rsa jinja2
markupsafe pyasn1 colorama filelock pluggy pytest scipy rich jsonschema docutils psutil pygments tqdm werkzeug flask
sklearn matplotlib PIL sympy networkx torch IPython jedi mypy hypothesis docker awscli
""".split()
MODES = [Mode(level, half) for level in ("O1", "O2", "O3") for half in ("fp16", "bf16")]  # type: ignore[arg-type]


def main() -> int:
    options = _options()
    if options.worker:
        print(json.dumps(_run(Mode(*options.worker.split()), sys.stdin.read().split("\n"))))
        return 0
    files = [str(path) for path in _files(options.folders, options.site)]
    print(f"{len(files)} files; Python {sys.version.split()[0]}, {len(all_checks())} rules", flush=True)
    print("| mode | lines | lines per CPU second | slowest file | peak memory | findings | not Python 3 | failures |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    failed = False
    slowest: list[tuple[float, str]] = []
    for mode in MODES:
        first = _in_a_process(mode, files, "1")
        # Again, from the last to the first, those in which something was found.
        second = _in_a_process(mode, [*reversed(first["digests"])], "2")
        failures = [*first["crashes"]]
        if first["digests"] != second["digests"]:
            failures.append("two runs found different things")
        if first["slowest"][0][0] > options.seconds:
            failures.append("a file took too long")
        if first["megabytes"] > options.megabytes:
            failures.append("took too much memory")
        slowest += [(seconds, f"{path} ({mode})") for seconds, path in first["slowest"]]
        speed = first["lines"] / first["seconds"]
        seconds, memory = f"{first['slowest'][0][0]:.2f} s", f"{first['megabytes']:.0f} MiB"
        numbers = f"{first['findings']} | {first['unreadable']} | {'; '.join(failures) or 'none'}"
        print(f"| {mode} | {first['lines']} | {speed:,.0f} | {seconds} | {memory} | {numbers} |", flush=True)
        failed = failed or bool(failures)
    print("\nSlowest files:\n")
    for seconds, name in sorted(slowest, reverse=True)[:5]:
        print(f"- {seconds:.2f} s: {name}")
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--site", action="append", type=Path, default=[], help="another folder of installed packages")
    parser.add_argument("--seconds", type=float, default=5.0, help="that a file may take")
    parser.add_argument("--megabytes", type=float, default=1024.0, help="that a process may take")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _files(folders: list[Path], sites: list[Path]) -> Iterator[Path]:
    if folders:
        for folder in folders:
            yield from sorted(folder.rglob("*.py"))
        return
    library = Path(sysconfig.get_path("stdlib"))
    yield from (path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts)
    places = [Path(sysconfig.get_path("purelib")), *sites]
    for name in PACKAGES:
        place = next((place for place in places if (place / name).is_dir() or (place / f"{name}.py").is_file()), None)
        if place is None:
            print(f"{name}: not installed", file=sys.stderr)
        elif (place / name).is_dir():
            yield from sorted((place / name).rglob("*.py"))
        else:
            yield place / f"{name}.py"


def _in_a_process(mode: Mode, files: list[str], seed: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", f"{mode.opt_level} {mode.dtype}"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        command, input="\n".join(files), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _run(mode: Mode, files: list[str]) -> dict[str, Any]:
    linter = Linter(mode, all_checks(), {check.code for check in all_checks()})
    taken: list[tuple[float, str]] = []
    crashes: list[str] = []
    lines = findings = unreadable = 0
    digests: dict[str, str] = {}
    for name in files:
        start = time.process_time()
        try:
            source = read_source(Path(name))
            lines += source.text.count("\n")
            result = linter.lint(source)
            found = result.findings
            crashes += [f"{name}: {failure}" for failure in result.failures]
        except SourceError:
            unreadable += 1
            continue
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            crashes.append(f"{name}: {type(error).__name__} in {Path(place.filename).name}:{place.lineno}: {error}")
            continue
        finally:
            taken.append((time.process_time() - start, name))
        findings += len(found)
        if found:
            text = "".join(f"{item.path}:{item.span}:{item.code}:{item.message}\n" for item in found)
            digests[name] = blake2b(text.encode(), digest_size=16).hexdigest()
    return {
        "seconds": sum(seconds for seconds, _ in taken),
        "slowest": sorted(taken, reverse=True)[:5],
        "lines": lines,
        "findings": findings,
        "unreadable": unreadable,
        "crashes": crashes,
        "digests": digests,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    sys.exit(main())
