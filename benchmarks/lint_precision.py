"""Precision of the linter: how many alarms it raises over public packages, and how many of them are right.

    python benchmarks/lint_precision.py sample --seed 7 --packages 12 --alarms 60 --folder F [--opt-level O3] [--leave-out timm,kornia]
    python benchmarks/lint_precision.py table F/O1.json [F/O3.json]

``sample`` draws packages of ``lint_packages.txt`` by the seed, brings them with pip (no dependencies, nothing is
installed or run), lints them as users do, and draws alarms among all findings by the seed. It writes ``F/<level>.json``:
how many lines and alarms there are, by rule, and the drawn alarms with an empty ``verdict``. A person reads each alarm
in its file and writes ``bug``, ``hazard``, ``minor`` or ``false`` there, with a word in ``why``. ``table`` prints what
came out. Nobody who changes rules looks at the sample before its figures are written down.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

from lint_figures import keep
from processes import size

HERE = Path(__file__).parent
OURS = str(Path(sys.executable).with_name("amp-lint"))
RIGHT = ("bug", "hazard")
VERDICTS = (*RIGHT, "minor", "false")
MOST_LINES = 400_000
"""Of one package, so that none of them outweighs the rest."""


def brought(name: str, folder: Path) -> Path | None:
    """The package's files; None where pip cannot bring it here."""
    place = folder / "packages" / name
    if not place.exists():
        archives = folder / "archives" / name
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "-d"]
        found = [path for path in archives.glob("*")] if archives.exists() else []
        for more in ([], ["--no-binary", ":all:"]):
            if not found:
                subprocess.run([*call, str(archives), *more, name], capture_output=True, check=False, timeout=300)
                found = list(archives.glob("*")) if archives.exists() else []
        if not found:
            return None
        place.mkdir(parents=True)
        _unpack(found[0], place)
    lines = size(place)[1]
    return place if 0 < lines <= MOST_LINES else None


def _unpack(archive: Path, place: Path) -> None:
    """The Python files of a wheel or a source distribution."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as held:
            held.extractall(place, [item for item in held.namelist() if item.endswith(".py")])
    else:
        with tarfile.open(archive) as held:
            members = [item for item in held.getmembers() if item.isfile() and item.name.endswith(".py")]
            # The argument `filter` came with 3.10.12 and 3.11.4.
            held.extraction_filter = getattr(tarfile, "data_filter", None)
            held.extractall(place, members)


def sample(options: argparse.Namespace) -> None:
    """Draw packages and alarms, and write them down."""
    drawn = random.Random(options.seed)
    names = (HERE / "lint_packages.txt").read_text(encoding="utf-8").split()
    drawn.shuffle(names)
    names = [name for name in names if name not in options.leave_out.split(",")]
    taken: dict[str, int] = {}
    alarms: list[dict[str, object]] = []
    for name in names:
        place = brought(name, options.folder)
        if place is None:
            continue
        taken[name] = size(place)[1]
        call = [OURS, str(place), "--format", "json", "--no-cache", "--exit-zero", "--opt-level", options.opt_level]
        said = subprocess.run(call, capture_output=True, text=True, check=False)
        for item in json.loads(said.stdout)["findings"]:
            place_of = {"file": item["file"], "line": item["start"]["line"]}
            alarms.append({"package": name, **place_of, "code": item["code"], "message": item["message"]})
        if len(taken) == options.packages:
            break
    result = {
        "opt_level": options.opt_level,
        "seed": options.seed,
        "lines": taken,
        "alarms": dict(sorted(Counter(str(item["code"]) for item in alarms).items())),
        "read": [{**item, "verdict": "", "why": ""} for item in drawn.sample(alarms, min(options.alarms, len(alarms)))],
    }
    path = options.folder / f"{options.opt_level}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    total = sum(taken.values())
    print(f"{options.opt_level}: {len(alarms)} alarms in {total} lines of {len(taken)} packages, ", end="")
    print(f"{1000 * len(alarms) / total:.3f} for each 1,000 lines; {len(result['read'])} to read in {path}")


def table(paths: list[Path], figures: bool) -> str:
    """What was read, by level and by rule."""
    rows = [
        "| | alarms | for each 1,000 lines | read | bugs | hazards | minor | false | right |",
        "| --- |" + " ---: |" * 8,
    ]
    by_rule: dict[str, Counter[str]] = {}
    for path in paths:
        held = json.loads(path.read_text(encoding="utf-8"))
        unread = [item for item in held["read"] if item["verdict"] not in VERDICTS]
        if unread:
            raise SystemExit(f"{path}: {len(unread)} alarms without a verdict ({', '.join(VERDICTS)})")
        count = Counter(item["verdict"] for item in held["read"])
        alarms, lines = sum(held["alarms"].values()), sum(held["lines"].values())
        rows.append(_row(held["opt_level"], str(alarms), f"{1000 * alarms / lines:.3f}", count))
        for item in held["read"]:
            by_rule.setdefault(item["code"], Counter())[item["verdict"]] += 1
    rows += [_row(code, "", "", by_rule[code]) for code in sorted(by_rule)]
    if figures:
        held = json.loads(paths[0].read_text(encoding="utf-8"))
        keep(
            "precision",
            {
                "packages": len(held["lines"]),
                "rules": {
                    code: [sum(count[item] for item in RIGHT), count.total()] for code, count in sorted(by_rule.items())
                },
            },
        )
    return "\n".join(rows)


def _row(name: str, alarms: str, density: str, count: Counter[str]) -> str:
    read = count.total()
    right = 100 * sum(count[item] for item in RIGHT) / read if read else 0
    cells = [name, alarms, density, str(read), *(str(count[item]) for item in VERDICTS), f"{right:.0f} %"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("sample", help="draw packages and alarms")
    draw.add_argument("--seed", type=int, required=True)
    draw.add_argument("--packages", type=int, default=12)
    draw.add_argument("--alarms", type=int, default=60)
    draw.add_argument("--opt-level", default="O1", choices=("O1", "O2", "O3"))
    draw.add_argument("--leave-out", default="", help="packages on which rules were tuned, separated by commas")
    draw.add_argument("--folder", type=Path, required=True)
    read = commands.add_parser("table", help="what was read")
    read.add_argument("paths", type=Path, nargs="+")
    read.add_argument("--figures", action="store_true", help="keep the figures by rule, for the rules' pages")
    options = parser.parse_args()
    if options.command == "sample":
        options.folder.mkdir(parents=True, exist_ok=True)
        sample(options)
    else:
        print(table(options.paths, options.figures))


if __name__ == "__main__":
    main()
