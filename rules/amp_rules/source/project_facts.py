"""The files around the one that is judged: what a dotted name leads to in the same project."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from amp_rules.source.digest import digest_of
from amp_rules.source.facts import Definition, FunctionFacts, ModuleFacts
from amp_rules.source.mentions import Mentions
from amp_rules.source.modules import Module, parse
from amp_rules.source.project import Importer, project_root
from amp_rules.source.resolver import member_of
from amp_rules.source.text import SourceError, SourceFile, read_source
from amp_rules.torch.packages import EXTERNAL, SELDOM_THE_PROJECTS

_MAX_TEXT = 3_000_000
"""Characters of source whose trees are kept; a tree takes about forty times its text."""
_MAX_USERS = 6
"""A function that more files use is a general helper, and given everything by one of them."""
_NOT_FOLLOWED = EXTERNAL | SELDOM_THE_PROJECTS
"""Packages that are not looked into. The last three may be the project itself; but what their users are told must not
depend on which of them lies beside the file, and looking for them takes longer than judging it."""

Seen = set[tuple[ModuleFacts, str]]
"""Names that were looked for already, each with the file that it was looked for in."""


class ProjectFacts:
    """Parses files once and finds what their imports lead to.

    Args:
        dropped: told of files whose trees are given up to make room for others.

    Attributes:
        used: the files that the answers since the last :meth:`start` rest on, with the hash of each.
    """

    def __init__(self, dropped: Callable[[ModuleFacts], None] | None = None) -> None:
        self._dropped = dropped
        self._facts: OrderedDict[Path, ModuleFacts | None] = OrderedDict()
        self._size = 0
        self._digests: dict[Path, str | None] = {}
        self._importers: dict[Path, Importer] = {}
        self._roots: dict[Path, Path] = {}
        self._located: dict[tuple[Path, str], Path | None] = {}
        self.used: dict[Path, str | None] = {}
        self._current: Path | None = None
        self._mentions: dict[Path, Mentions] = {}

    def start(self, source: SourceFile) -> ModuleFacts:
        """Parse the file that is judged next.

        Raises:
            SourceError: it is not Python 3.
        """
        self.used = {}
        self._current = source.path
        known = self._facts.get(source.path)
        digest = digest_of(source.data)
        if known is not None and self._digests.get(source.path) == digest:
            return known
        facts = ModuleFacts(parse(source), self)
        self._keep(source.path, facts, digest)
        return facts

    def _keep(self, path: Path, facts: ModuleFacts | None, digest: str | None) -> None:
        old = self._facts.pop(path, None)
        if old is not None:
            self._drop(old)
        self._facts[path] = facts
        self._digests[path] = digest
        if facts is not None:
            self._size += len(facts.module.source.text)
        while self._size > _MAX_TEXT and len(self._facts) > 1:
            _, dropped = self._facts.popitem(last=False)
            if dropped is not None:
                self._drop(dropped)

    def _drop(self, facts: ModuleFacts) -> None:
        self._size -= len(facts.module.source.text)
        if self._dropped is not None:
            self._dropped(facts)

    def _load(self, path: Path) -> ModuleFacts | None:
        if path in self._facts:
            self._facts.move_to_end(path)
        else:
            facts: ModuleFacts | None = None
            digest: str | None = None
            try:
                source = read_source(path)
                digest = digest_of(source.data)
                facts = ModuleFacts(parse(source), self)
            except SourceError:
                pass
            self._keep(path, facts, digest)
        if path != self._current:
            self.used[path] = self._digests.get(path)
        return self._facts[path]

    def _root(self, path: Path) -> Path:
        root = self._roots.get(path.parent)
        if root is None:
            root = self._roots[path.parent] = project_root(path)
        return root

    def _locate(self, module: Module, name: str, level: int) -> Path | None:
        folder = module.path.parent
        key = (folder, "." * level + name)
        if key not in self._located:
            root = self._root(module.path)
            importer = self._importers.get(root)
            if importer is None:
                importer = self._importers[root] = Importer(root)
            self._located[key] = importer.locate(module.path, name, level)
        return self._located[key]

    def users(self, function: FunctionFacts) -> list[ModuleFacts]:
        """The other files of the project that import a function of a file, or the file; none where there are many."""
        return [facts for facts in self._mentioning(function.module, function.name) if self._reaches(facts, function)]

    def importers(self, module: ModuleFacts) -> list[ModuleFacts]:
        """The other files that import a file or anything in it; none where many do."""
        return [facts for facts in self._mentioning(module) if module in facts.imported()]

    def _mentioning(self, module: ModuleFacts, *words: str) -> list[ModuleFacts]:
        """The other files that may import a file, by their texts, and have words in it; none where there are many."""
        path = module.module.path
        root = self._root(path)
        mentions = self._mentions.get(root)
        if mentions is None:
            mentions = self._mentions[root] = Mentions(path)
        name = path.parent.name if path.stem == "__init__" else path.stem
        paths = [item for item in mentions.of(*words, name, "import") if item != path]
        if len(paths) > _MAX_USERS:
            return []
        return [facts for item in paths if (facts := self._load(item)) is not None]

    def _reaches(self, facts: ModuleFacts, function: FunctionFacts) -> bool:
        """Whether a file imports a function under its name, or the file that it stands in."""
        for name, dotted in facts.imports.items():
            if name == function.name or dotted.rpartition(".")[2].endswith(function.name):
                found = self.resolve(facts, dotted)
                if isinstance(found, FunctionFacts) and found.node is function.node:
                    return True
            elif dotted.rpartition(".")[2] == function.module.module.path.stem:
                if self.resolve(facts, dotted) is function.module:
                    return True
        return False

    def resolve(self, importer: ModuleFacts, dotted: str) -> Definition | None:
        """The function, class or module of the project that ``dotted`` stands for in ``importer``."""
        return self._resolve(importer, dotted, set())

    def _resolve(self, importer: ModuleFacts, dotted: str, seen: Seen) -> Definition | None:
        # Packages import from modules what users import from them, and may do so in a circle.
        if not dotted or (importer, dotted) in seen:
            return None
        seen.add((importer, dotted))
        level = len(dotted) - len(dotted.lstrip("."))
        name = dotted[level:]
        head = name.partition(".")[0]
        if not level and head in _NOT_FOLLOWED:
            return None
        parts = name.split(".") if name else []
        for count in range(len(parts), -1, -1):
            prefix = ".".join(parts[:count])
            if not prefix and not level:
                return None
            path = self._locate(importer.module, prefix, level)
            if path is None:
                continue
            facts = self._load(path)
            if facts is None:
                return None
            return self._member(facts, parts[count:], seen)
        return None

    def _member(self, facts: ModuleFacts, parts: list[str], seen: Seen) -> Definition | None:
        if not parts:
            return facts
        head, rest = parts[0], parts[1:]
        if head in facts.functions and not rest:
            return facts.functions[head]
        if head in facts.classes:
            cls = facts.classes[head]
            return cls if not rest else cls.method(rest[0])
        if head in facts.imports:
            return self._resolve(facts, ".".join([facts.imports[head], *rest]), seen)
        for star in facts.stars:
            found = self._resolve(facts, member_of(star, ".".join(parts)), seen)
            if found is not None:
                return found
        return None

    def module_of_constant(self, importer: ModuleFacts, dotted: str) -> tuple[ModuleFacts, str] | None:
        """The file and the name of the module variable that ``dotted`` stands for."""
        seen: Seen = set()
        while (importer, dotted) not in seen:
            seen.add((importer, dotted))
            prefix, _, name = dotted.rpartition(".")
            if dotted.startswith(".") and not prefix.strip("."):
                prefix = dotted[: len(dotted) - len(dotted.lstrip("."))]
                name = dotted.lstrip(".")
            facts = self._resolve(importer, prefix, set())
            if not isinstance(facts, ModuleFacts):
                return None
            if name in facts.constants:
                return facts, name
            if name not in facts.imports:
                return None
            importer, dotted = facts, facts.imports[name]
        return None
