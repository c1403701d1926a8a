"""What hydra composes for a script out of the YAML files of its configuration folder.

A value can be chosen anew on each command line, so nothing is overridden here: what a place of the configuration can
hold is all that the files which may be chosen put there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.source.project import Project
from amp_rules.source.text import SourceError
from amp_rules.source.yaml_subset import NotRead, read_yaml

SUFFIXES = (".yaml", ".yml")
"""How the files of a configuration end."""
_PACKAGE = re.compile(r"#\s*@package\s+(\S+)")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_OWN_GROUP = re.compile(r"(?:optional |override )*/?hydra(?:/|$)")
_MAX_CHOICES = 40
"""Files of one folder of which a command line chooses one; what more there is, by name, is not looked at."""
_MAX_FILES = 400
"""Files of one configuration. One that has more is read no further, and counts as not known."""
_MAX_DEPTH = 12
"""Files that name files; people's configurations have four levels."""


class NotComposed(Exception):
    """The configuration, or a file that it names, is not there or cannot be read."""


@dataclass(eq=False)
class Setting:
    """A place of the configuration, and what it can hold.

    Attributes:
        texts: strings.
        members: what a mapping holds.
        items: what a list holds.
        flags: the keys of a mapping that are true.
        site: stands for the place.
    """

    texts: list[str] = field(default_factory=list)
    members: dict[str, Setting] = field(default_factory=dict)
    items: list[Setting] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    site: ast.Dict = field(default_factory=lambda: ast.Dict([], []))

    def at(self, package: str) -> Setting:
        """The place with a dotted name, which is made if it is not there."""
        place = self
        for name in package.split(".") if package else ():
            place = place.members.setdefault(name, Setting())
        return place

    def add(self, value: object) -> None:
        """Have it hold a value, too."""
        if isinstance(value, str):
            self.texts.append(value)
        elif isinstance(value, dict) and isinstance(value.get("params"), dict) and ("class" in value or "cls" in value):
            # As hydra before 1.0 had it.
            self.add({**value["params"], "_target_": value.get("class", value.get("cls"))})
        elif isinstance(value, dict):
            for name, item in value.items():
                self.members.setdefault(name, Setting()).add(item)
                if item is True:
                    self.flags.add(name)
        elif isinstance(value, list):
            for item in value:
                self.items.append(Setting())
                self.items[-1].add(item)

    def places(self) -> Iterator[Setting]:
        """This place and all below it, each once."""
        pending, seen = [self], set[int]()
        while pending:
            place = pending.pop()
            if id(place) not in seen:
                seen.add(id(place))
                yield place
                pending.extend([*place.members.values(), *place.items])

    def found(self, package: str) -> Setting | None:
        """The place with a dotted name, if it is there."""
        place: Setting | None = self
        for name in package.split("."):
            place = place.members.get(name) if place is not None else None
        return place


def compose(project: Project, folder: Path, name: str) -> Setting | None:
    """What ``hydra.main(config_path=folder, config_name=name)`` gives a function; None where that is not known."""
    composer = _Composer(project, folder)
    try:
        composer.file(name, "", "", 0)
    except NotComposed:
        return None
    root = composer.root
    for place in list(root.places()):
        _follow(root, place)
    return root


def _follow(root: Setting, place: Setting) -> None:
    """Have a place whose text is ``${other}`` hold what that one holds."""
    for text in place.texts:
        reference = _REFERENCE.fullmatch(text)
        other = root.found(reference[1]) if reference else None
        if other is not None and other is not place:
            place.texts = [*(item for item in place.texts if item != text), *other.texts]
            for name, item in other.members.items():
                place.members.setdefault(name, item)
            place.items.extend(item for item in other.items if item not in place.items)
            place.flags |= other.flags


class _Composer:
    """Reads a file and those that its ``defaults`` name."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.root = Setting()
        self._project = project
        self._folder = folder
        self._read: set[tuple[Path, str]] = set()

    def file(self, name: str, group: str, package: str, depth: int) -> None:
        """Add one file of a group to what a package holds."""
        path = self._path(group, name)
        if path is None or depth > _MAX_DEPTH or len(self._read) >= _MAX_FILES:
            raise NotComposed
        try:
            text = self._project.settings_text(path)
            found = read_yaml(text)
        except (NotRead, SourceError) as error:
            raise NotComposed from error
        head = _PACKAGE.search(text.partition("\n\n")[0])
        if head is not None:
            package = "" if head[1] == "_global_" else package if head[1] == "_group_" else head[1]
        if (path, package) in self._read or not isinstance(found, dict):
            return
        self._read.add((path, package))
        defaults = found.pop("defaults", None)
        self.root.at(package).add(found)
        for entry in defaults if isinstance(defaults, list) else ():
            self._default(entry, group, package, depth + 1)

    def _default(self, entry: object, group: str, package: str, depth: int) -> None:
        if isinstance(entry, str):
            if entry != "_self_":
                name, _, at = entry.partition("@")
                self.file(name.lstrip("/"), "" if name.startswith("/") else group, _below(package, at), depth)
            return
        for key, choice in entry.items() if isinstance(entry, dict) else ():
            if _OWN_GROUP.match(key) is None:
                self._choice(key, choice, group, package, depth)

    def _choice(self, key: str, choice: object, group: str, package: str, depth: int) -> None:
        """``- model: resnet``, which a command line may replace by another file of the folder."""
        is_optional = key.startswith("optional ")
        name, _, at = key.removeprefix("optional ").removeprefix("override ").strip().partition("@")
        is_absolute = name.startswith("/") or "override " in key
        inner = (name if is_absolute else f"{group}/{name}").lstrip("/")
        below = _below(package, at or name.strip("/").replace("/", "."))
        chosen = [item for item in (choice if isinstance(choice, list) else [choice]) if isinstance(item, str)]
        for item in chosen:
            if "${" not in item and item != "???" and (not is_optional or self._path(inner, item) is not None):
                self.file(item, inner, below, depth)
        for other in self._names(inner):
            try:
                self.file(other, inner, below, depth)
            except NotComposed:
                continue

    def _names(self, group: str) -> list[str]:
        names = self._project.settings_in(self._folder / group)
        return [name.rpartition(".")[0] for name in names if name.endswith(SUFFIXES)][:_MAX_CHOICES]

    def _path(self, group: str, name: str) -> Path | None:
        base = self._folder / group / name
        ends = [""] if name.endswith(SUFFIXES) else SUFFIXES
        paths = (base.with_name(base.name + end) for end in ends)
        return next((path for path in paths if self._project.has_settings(path)), None)


def _below(package: str, at: str) -> str:
    if at.startswith("_global_"):
        return at.removeprefix("_global_").lstrip(".")
    if at in ("", "_here_", "_group_"):
        return package
    return f"{package}.{at}".lstrip(".")
