"""Settings from ``[tool.amp-migrate]`` and how they are checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from amp_rules.plan.options import APEX_MODES, DTYPES, HALVED, OPT_LEVELS, QUANTIZATIONS, TARGETS, Options

from amp_migrate.problems import UserError
from amp_migrate.settings.pyproject import Key, boolean, choice, load_table, settings_folder, strings, text
from amp_migrate.settings.selected_rewrites import known_codes


@dataclass(frozen=True)
class Settings:
    """What a run is to do, from defaults, configuration file and command line.

    Attributes:
        options: what the migration itself is asked for.
        vendor: copy the runtime beside the entry scripts.
        launch_lines: edit the commands that start the scripts in several processes.
        install_line: what the first cell of a notebook installs; ``auto`` for the runtime as it is known here.
        strict: whether a step that is declined makes the run fail.
        baseline: a file of declines that are known.
        exclude: gitignore patterns of files that are passed over in directories.
        root: the folder that ``exclude`` is relative to.
    """

    options: Options = field(default_factory=Options)
    vendor: bool = False
    launch_lines: bool = False
    install_line: str = ""
    strict: bool = False
    baseline: Path | None = None
    exclude: tuple[str, ...] = ()
    root: Path = field(default_factory=Path.cwd)

    def overridden(self, values: Mapping[str, Any]) -> Settings:
        """Return these settings with those of ``values``, keyed as in the file, that are not None."""
        given = {key: value for key, value in values.items() if value is not None}
        vendor = given.pop("vendor", self.vendor)
        launch_lines = given.pop("launch-lines", self.launch_lines)
        install_line = given.pop("install-line", self.install_line)
        strict = given.pop("strict", self.strict)
        baseline = given.pop("baseline", self.baseline)
        exclude = tuple(given.pop("exclude", self.exclude))
        options = replace(self.options, **{key.replace("-", "_"): value for key, value in given.items()})
        return replace(
            self,
            options=options,
            vendor=vendor,
            launch_lines=launch_lines,
            install_line=install_line,
            strict=strict,
            baseline=baseline and self.root / baseline,
            exclude=exclude,
        )


def load_settings(start: Path, explicit: Path | None) -> Settings:
    """Read the configuration that holds for ``start``, or the file named by ``--config``.

    Raises:
        UserError: the file cannot be read, or holds a key or a value that is not known.
    """
    table = load_table("amp-migrate", KEYS, start, explicit)
    if table is None:
        return Settings()
    return Settings(root=table.path.resolve().parent).overridden(table.values)


def parse_loss_scale(value: object) -> float | Literal["dynamic"]:
    """Return a valid loss scale.

    Raises:
        ValueError: it is neither ``"dynamic"`` nor a positive finite number.
    """
    if value == "dynamic":
        return "dynamic"
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number > 0:
            return number
    raise ValueError(value)


def parse_rows(value: object) -> int:
    """Return a valid number of rows.

    Raises:
        ValueError: it is no positive whole number.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError(value)


EXCLUDE = strings('a list of gitignore patterns, as in ["legacy/", "*_test.py"]')
CODES = strings('a list of codes of rewrites, as in ["AMP105", "AMP2"]')
KEYS = {
    "opt-level": choice(OPT_LEVELS),
    "ddp": boolean(),
    "sync-bn": boolean(),
    "shard": boolean(),
    "shard-eval": boolean(),
    "shard-embeddings": Key("a positive whole number", parse_rows),
    "quantize": choice(QUANTIZATIONS),
    "fused": boolean(),
    "dtype": choice(DTYPES),
    "loss-scale": Key('"dynamic" or a positive number', parse_loss_scale),
    "target": choice(TARGETS),
    "apex": choice(APEX_MODES),
    "modernize": boolean(),
    "switch": boolean(),
    "select": CODES,
    "ignore": CODES,
    "vendor": boolean(),
    "launch-lines": boolean(),
    "install-line": text('what pip is to install, as in "amp-runtime"'),
    "strict": boolean(),
    "baseline": text("the path of a file"),
    "exclude": EXCLUDE,
}


def settings_of(arguments: dict[str, Any]) -> Settings:
    """Join what stands in the configuration with what was given on the command line.

    Raises:
        UserError: the configuration cannot be read, or something in it is not known.
    """
    folder = settings_folder(arguments["paths"], arguments["stdin_filename"])
    settings = load_settings(folder, arguments["config"])
    settings = replace(settings, options=known_codes(settings.options, "[tool.amp-migrate] "))
    given = known_codes(Options(select=arguments["select"] or (), ignore=arguments["ignore"] or ()), "--")
    arguments |= {key: getattr(given, key) for key in ("select", "ignore") if arguments[key] is not None}
    keys = [key for key in KEYS if key != "exclude"]
    if arguments["baseline"] is not None:
        # Beside the working directory, and not beside the configuration.
        arguments["baseline"] = arguments["baseline"].absolute()
    settings = settings.overridden({key: arguments[key.replace("-", "_")] for key in keys})
    if settings.options.shard:
        if arguments["ddp"] is False:
            raise UserError("--shard needs several processes, and --no-ddp has one: use one of the two")
        settings = settings.overridden({"ddp": True})
        _refuse_beside_shards(settings.options)
    if settings.options.shard_embeddings is not None:
        _refuse_beside_tables(settings.options)
    if settings.options.quantize is not None:
        _refuse_beside_int8(settings.options)
    _refuse_beside_torch(settings)
    return settings


def _refuse_beside_shards(options: Options) -> None:
    """Refuse what models that are shared out do not have; see ``docs/sharding.md``.

    Raises:
        UserError: the two cannot both be followed, wherever each of them was said.
    """
    if options.opt_level == "O3":
        raise UserError("--shard keeps float32 shards, and O3 has no such weights: take --opt-level O2, or --no-shard")
    if options.target == "torch":
        raise UserError(
            "--shard needs the runtime, which keeps loss scale, clipping and checkpoints right for shards: "
            "take --target runtime, or --no-shard"
        )
    if options.apex == "compat":
        raise UserError(
            "--shard needs the runtime's interface, and --apex compat keeps Apex's: take --apex idiom, or --no-shard"
        )
    if options.shard_eval:
        raise UserError(
            "--shard needs all processes in every forward pass, and --shard-eval gives each its own number of "
            "batches: use one of the two"
        )


def _refuse_beside_tables(options: Options) -> None:
    """Refuse what tables whose rows are shared out do not have; see ``docs/embeddings.md``.

    Raises:
        UserError: the two cannot both be followed, wherever each of them was said.
    """
    if not options.ddp:
        raise UserError("--shard-embeddings needs several processes: add --ddp, or leave it out")
    if options.shard:
        raise UserError(
            "--shard already shards tables with the rest of the model: use --shard or --shard-embeddings, not both"
        )
    if options.opt_level in HALVED:
        raise UserError(
            f"--shard-embeddings keeps float32 rows, and {options.opt_level} has half weights: take --opt-level O1, "
            "or leave it out"
        )
    if options.target == "torch":
        raise UserError(
            "--shard-embeddings needs the runtime, which looks rows up on other processes: take --target runtime, "
            "or leave it out"
        )
    if options.apex == "compat":
        raise UserError(
            "--shard-embeddings needs the runtime's interface, and --apex compat keeps Apex's: take --apex idiom, "
            "or leave it out"
        )
    if options.shard_eval:
        raise UserError(
            "--shard-embeddings needs all processes in every lookup, and --shard-eval gives each its own number of "
            "batches: use one of the two"
        )


def _refuse_beside_int8(options: Options) -> None:
    """Refuse what has no whole float model to quantize, or no runtime; see ``docs/quantization.md``.

    Raises:
        UserError: the two cannot both be followed, wherever each of them was said.
    """
    if options.shard or options.shard_embeddings is not None:
        other = "--shard" if options.shard else "--shard-embeddings"
        raise UserError(
            f"--quantize needs a whole model, and {other} leaves each process a part of it: take one of them"
        )
    if options.target == "torch":
        raise UserError(
            "--quantize needs the runtime, which quantizes on top of torchao: take --target runtime, or leave it out"
        )
    if options.apex == "compat":
        raise UserError(
            "--quantize needs the runtime's interface, and --apex compat keeps Apex's: take --apex idiom, or leave it "
            "out"
        )


def _refuse_beside_torch(settings: Settings) -> None:
    """Refuse what only the runtime can do where it is to be left out; see :mod:`amp_rules.plain_torch`.

    Raises:
        UserError: the two cannot both be followed, wherever each of them was said.
    """
    options = settings.options
    if options.target != "torch":
        return
    if options.opt_level in ("O2", "O3"):
        raise UserError(
            f"--target torch has O0 and O1 only: --opt-level {options.opt_level} needs the runtime's half parameters. "
            f"Take --opt-level O1, or --target runtime"
        )
    if options.apex == "compat":
        raise UserError(
            "--target torch leaves nothing of Apex's interface: --apex compat takes it from the runtime. "
            "Take --apex idiom or auto, or --target runtime"
        )
    if settings.vendor:
        raise UserError(
            "--target torch has scripts that need torch alone: --vendor has no runtime to copy. "
            "Take --no-vendor, or --target runtime"
        )
