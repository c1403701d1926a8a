"""Reading a tool's table from ``pyproject.toml``: where it is found, and what it may hold."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_migrate.problems import UserError, shown


@dataclass(frozen=True)
class Key:
    """What one key of a table may hold.

    Attributes:
        allowed: the allowed values, as a message names them.
        convert: returns a value in the type that the program uses.

            Raises:
                ValueError: the value is not allowed.
    """

    allowed: str
    convert: Callable[[Any], Any]


def boolean() -> Key:
    """Return the key that is true or false."""
    return Key("true, false", lambda value: _typed(value, bool))


def choice(values: Iterable[str]) -> Key:
    """Return the key that is one of ``values``."""
    allowed = tuple(values)

    def convert(value: Any) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise ValueError(value)

    return Key(", ".join(f'"{item}"' for item in allowed), convert)


def text(allowed: str) -> Key:
    """Return the key that is a string, described as ``allowed``."""
    return Key(allowed, lambda value: _typed(value, str))


def strings(allowed: str) -> Key:
    """Return the key that is a list of strings, described as ``allowed``."""
    return Key(allowed, _strings)


def table_of_strings(allowed: str) -> Key:
    """Return the key that is a table whose values are lists of strings, described as ``allowed``."""
    return Key(allowed, lambda value: {key: _strings(item) for key, item in _typed(value, dict).items()})


@dataclass(frozen=True)
class Table:
    """A tool's settings as they stand in a file, checked.

    Attributes:
        path: the file.
        values: by key.
    """

    path: Path
    values: Mapping[str, Any]


def load_table(tool: str, keys: Mapping[str, Key], start: Path, explicit: Path | None) -> Table | None:
    """Return ``[tool.<tool>]`` from the nearest file at or above the folder ``start``, or from ``explicit``.

    Raises:
        UserError: the file cannot be read, or holds a key or a value that is not known.
    """
    if explicit is not None:
        table = _section(_read_toml(explicit), tool)
        if table is None:
            raise UserError(f"{shown(explicit)}: has no table [tool.{tool}]")
        return _checked(table, tool, keys, explicit)
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file():
            table = _section(_read_toml(candidate), tool)
            if table is not None:
                return _checked(table, tool, keys, candidate)
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{shown(path)}: is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{shown(path)}: is not valid TOML: {error}") from error
    return document


def _section(document: dict[str, Any], tool: str) -> object | None:
    tools = document.get("tool")
    return tools.get(tool) if isinstance(tools, dict) else None


def _checked(table: object, tool: str, keys: Mapping[str, Key], path: Path) -> Table:
    if not isinstance(table, dict):
        raise UserError(f"{shown(path)}: [tool.{tool}] must be a table, not {table!r}")
    values = {}
    for name, value in table.items():
        key = keys.get(name)
        if key is None:
            import difflib

            close = difflib.get_close_matches(name.replace("_", "-").lower(), keys, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(keys)}"
            raise UserError(f"{shown(path)}: unknown key {name!r} in [tool.{tool}]; {hint}")
        try:
            values[name] = key.convert(value)
        except ValueError as error:
            message = f"{shown(path)}: {name} = {_toml(value)} in [tool.{tool}]; allowed: {key.allowed}"
            raise UserError(message) from error
    return Table(path, values)


def _typed(value: Any, kind: type) -> Any:
    if isinstance(value, kind):
        return value
    raise ValueError(value)


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError(value)


def _toml(value: object) -> str:
    """Write a value about as it stands in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def settings_folder(paths: Sequence[Path], stdin_filename: Path | None) -> Path:
    """The folder from which the configuration is looked for upwards: that of the first path."""
    first = paths[0] if paths else Path.cwd()
    if first == Path("-"):
        first = stdin_filename or Path.cwd() / "stdin"
    # Whoever opens a link that leads in a circle says so.
    return Path(os.path.realpath(first if first.is_dir() else first.parent))
