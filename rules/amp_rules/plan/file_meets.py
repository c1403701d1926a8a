"""Whether a path that is read has to do with one that is changed, where neither is known as a whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable

from amp_rules.plan.path_heads import PathHeads
from amp_rules.roles.file_effects import FileEffect, mode_of
from amp_rules.roles.file_paths import NOW, OWN, Paths, taken_as_it_is
from amp_rules.roles.gapped_texts import NUMBER, UNKNOWN, share_piece
from amp_rules.roles.made_folders import folder_made
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import children, values_given, walk
from amp_rules.torch.checkpoints import SAVES
from amp_rules.torch.file_access import (
    FOLDER_LOADERS,
    IMAGE_LOADERS,
    LISTS_FOLDERS,
    LOADERS,
    MOVES,
    OPENERS,
    PATTERNS,
    READING_METHODS,
    WEIGHT_LOADERS,
    WRITERS_OF_ANYTHING,
    WRITERS_OF_READERS,
)
from amp_rules.torch.writers import FILE_WRITERS, LOG_KEEPERS, MODEL_WRITERS

_DEPTH = 6
"""Variables behind variables."""
_EXTENSION = re.compile(r"\.\w+$")
_ENDING_OF_PATTERN = re.compile(r"\*\.?\w*$")
"""``*.txt`` takes files of one kind, which others write in other folders."""
_WORD = re.compile("[A-Za-z]{3}")
_NAMED = re.compile(r"[./~]*\w")
"""The beginning of a literal that names a folder: not ``"{}/weights"``."""
_FILE_COPIES = frozenset({"shutil.copy", "shutil.copy2", "shutil.copyfile"})
_LOOKS_FOR_FILES = frozenset({"isfile", "is_file"})


class FileMeets:
    """Whether two paths that can be the same have anything to do with each other."""

    def __init__(self, program: Program, paths: Paths) -> None:
        self._program = program
        self._paths = paths
        self._heads = PathHeads(program, paths)
        # Callers of callers come to the same few variables by many ways.
        self._holding: dict[tuple[ast.expr, Scope, int], frozenset[object]] = {}
        self._copying: dict[ast.Call, bool] = {}
        self._variables: dict[tuple[ast.expr, Scope, bool], frozenset[tuple[object, object]]] = {}

    def have_to_do(
        self, read: Site, path: ast.expr, change: Site, other: ast.expr, pairs: Iterable[tuple[str, str]]
    ) -> bool:
        """Whether a read and a change mean one file, by the pairs of texts of them that can be the same."""
        assert isinstance(read.node, ast.Call)
        assert isinstance(change.node, ast.Call)
        pairs = list(pairs)
        if not pairs:
            return False
        names = self._program.callee_names(change.node, change.scope)
        makes_folder = self._only_makes_folder(change)
        if makes_folder and self._reads_content(read.node, read.scope):
            # Nothing can be read from a folder that is empty: it is filled first, by what is a change itself.
            return isinstance(change, FileEffect) and self._share_variable(read, path, change, other, by_item=True)
        is_log = bool(names & LOG_KEEPERS)
        of_data = self._is_of_data_set(read)
        of_folder = bool(self._program.callee_names(read.node, read.scope) & FOLDER_LOADERS)
        if of_folder and not self._fits(read, change, names, of_its_kind=False):
            return False
        by_pattern = self._is_found_by_pattern(path, read.scope, _DEPTH)
        if by_pattern or self._program.callee_names(read.node, read.scope) & PATTERNS:
            pairs = [(_ENDING_OF_PATTERN.sub(UNKNOWN, one), _EXTENSION.sub("", two)) for one, two in pairs]
        if any(_share_text(one, two, is_log or of_data or _are_named(one, two)) for one, two in pairs):
            return True
        removes = isinstance(change, FileEffect) and change.removes
        if not (removes or names & MODEL_WRITERS.keys()) and all(_are_named(one, two) for one, two in pairs):
            return False  # two files, of one folder it may be: only what is not known could make one name of theirs
        lists = bool(self._program.callee_names(read.node, read.scope) & LISTS_FOLDERS)
        is_input = of_data or of_folder or by_pattern or lists
        if not (is_input and self._is_in_another_folder(read, path, change, other)):
            if self._share_variable(read, path, change, other, by_item=True):
                return True
        has_clock = self._paths.is_of_this_moment(other, change.scope)
        if has_clock or makes_folder or is_log:
            return has_clock and self._paths.is_of_this_moment(path, read.scope)
        if of_folder or by_pattern or lists:
            return False  # what a script trains on lies where nothing of it writes, unless the path says so
        of_data |= bool(self._program.callee_names(read.node, read.scope) & IMAGE_LOADERS)
        if of_data and not (self._is_unknown(path, read.scope) or self._is_unknown(other, change.scope)):
            return False  # a data set reads files of its own
        if self._copies_what_is_read(change):
            return False  # the settings of a run, kept beside its results
        return self._fits(read, change, names, of_its_kind=of_data)

    def _is_found_by_pattern(self, path: ast.expr, scope: Scope, depth: int) -> bool:
        """Whether a path is one of those that a pattern has found: ``for name in glob(folder + "/*.txt")``."""
        if isinstance(path, ast.Call) and self._program.callee_names(path, scope) & PATTERNS:
            return True
        if not isinstance(path, ast.Name) or not depth:
            return False
        given = self._paths.assigned(path, scope)
        return bool(given) and all(self._is_found_by_pattern(value, at, depth - 1) for value, at in given)

    def _copies_what_is_read(self, change: Site) -> bool:
        """Whether a call copies a file that the script opens where it is: what is read elsewhere is no copy of it."""
        assert isinstance(change.node, ast.Call)
        known = self._copying.get(change.node)
        if known is None:
            source = next(iter(change.node.args), None)
            is_copy = bool(self._program.callee_names(change.node, change.scope) & _FILE_COPIES)
            known = is_copy and isinstance(source, (ast.Name, ast.Attribute)) and self._is_opened(source, change.scope)
            self._copying[change.node] = known
        return known

    def _is_opened(self, source: ast.expr, scope: Scope) -> bool:
        """Whether the script opens a file, of which nothing but its variable is known, to read it."""
        if not self._is_unknown(source, scope):
            return False
        cells = self._cells(source, scope, _DEPTH)
        return any(
            isinstance(site.node, ast.Call)
            and bool(site.node.args)
            and self._reads_content(site.node, site.scope)
            and not cells.isdisjoint(self._cells(site.node.args[0], site.scope, _DEPTH))
            for site in self._program.calls_to(frozenset(OPENERS))
        )

    def is_source(self, change: Site, other: ast.expr) -> bool:
        """Whether a path is that of a file which is copied, and stays as it is."""
        assert isinstance(change.node, ast.Call)
        names = self._program.callee_names(change.node, change.scope)
        is_copy = any(name.startswith("shutil.copy") for name in names) and all(FILE_WRITERS.get(i) == 1 for i in names)
        return is_copy and len(change.node.args) > 1 and other is change.node.args[0]

    def _only_makes_folder(self, change: Site) -> bool:
        assert isinstance(change.node, ast.Call)
        if isinstance(change, FileEffect) and change.fills_folder:
            return False
        return folder_made(self._program, change.node, change.scope) is not None

    def _reads_content(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call reads from a file, or looks for one that is no folder."""
        names = self._program.callee_names(call, scope)
        own = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if names & (LOADERS | FOLDER_LOADERS) or own in READING_METHODS or own in _LOOKS_FOR_FILES:
            return True
        if not (names & OPENERS.keys()):
            return False
        mode = mode_of(call)
        if mode is None:
            return True
        return isinstance(mode, ast.Constant) and str(mode.value).startswith("r") and "+" not in str(mode.value)

    def _fits(self, read: Site, change: Site, names: Collection[str], *, of_its_kind: bool) -> bool:
        """Whether the call reads what the other writes, where nothing else speaks for it.

        Args:
            read: the call that reads.
            change: the call that changes a file.
            names: the names of that.
            of_its_kind: whether only a writer of just the kind of file that is read counts.
        """
        assert isinstance(read.node, ast.Call)
        assert isinstance(change.node, ast.Call)
        own = change.node.func.attr if isinstance(change.node.func, ast.Attribute) else ""
        if isinstance(change, FileEffect) and change.removes:
            return not MOVES.isdisjoint(names) or own in ("rename", "replace")
        known = WRITERS_OF_READERS.keys() & self._program.callee_names(read.node, read.scope)
        fitting = frozenset[str]().union(*(WRITERS_OF_READERS[name] for name in known))
        if of_its_kind:
            return not fitting.isdisjoint(names or {own})
        return not known or not (fitting | WRITERS_OF_ANYTHING).isdisjoint(names or {own})

    def _is_of_data_set(self, site: Site) -> bool:
        """Whether a place is in a method of a class whose objects give samples by their index."""
        info = self._program.function_of(site.body)
        owner = self._program.flow.class_of(info) if info is not None else None
        return owner is not None and owner.find_method("__getitem__") is not None

    def is_handed_on(self, path: ast.expr, scope: Scope, other: ast.expr, where: Scope) -> bool:
        """Whether two paths of which nothing is known are one variable, or made from one, under other names."""
        unknown = self._is_unknown(path, scope) and self._is_unknown(other, where)
        return unknown and not self._cells(path, scope, _DEPTH).isdisjoint(self._cells(other, where, _DEPTH))

    def may_be_kept(self, read: Site, path: ast.expr, at: Scope, change: Site, other: ast.expr) -> bool:
        """Whether weights that are read may be those that the training keeps: of one of the paths nothing is known.

        Args:
            read: the call that reads.
            path: the expression of what it reads, as the one who calls its function gives it.
            at: the scope of that.
            change: the call that writes.
            other: where to.
        """
        assert isinstance(change.node, ast.Call)
        if not self._program.callee_names(change.node, change.scope) & SAVES or not self._loads_weights(read):
            return False
        if self._saves_list(change.node, change.scope) or self._saves_untrained(change.node, change.scope):
            return False
        return self._is_unknown(path, at) or self._is_unknown(other, change.scope)

    def _saves_list(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call saves a list that a body makes itself, such as the numbers of the samples that it chose."""
        values = self._program.flow.values(call.args[0], scope) if call.args else set()
        return bool(values) and all(
            value.kind == "sequence" and isinstance(value.site, (ast.List, ast.ListComp)) for value in values
        )

    def _saves_untrained(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call saves the weights of models alone that are not trained: of a loss, converted once."""
        states = [
            node.func.value
            for node in walk(call.args[0] if call.args else call)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"
        ]
        models = [value for state in states for value in self._program.roles.modules(state, scope)]
        return bool(models) and not any(
            self._program.is_trained(value) or not isinstance(value.site, ast.Call) for value in models
        )

    def _loads_weights(self, read: Site) -> bool:
        """Whether a model takes what a call reads from a file, at once or by way of a variable of its function."""
        assert isinstance(read.node, ast.Call)
        if not self._program.callee_names(read.node, read.scope) & WEIGHT_LOADERS:
            return False
        statement = read.statement
        names = blocks.writes(statement) if isinstance(statement, (ast.Assign, ast.AnnAssign)) else set()
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load_state_dict"
            and any(
                part is read.node or (isinstance(part, (ast.Name, ast.Attribute)) and blocks.path_of(part) in names)
                for given in values_given(node)
                for part in walk(given)
            )
            for node in self._program.nodes_of(read.body)
        )

    def _is_unknown(self, path: ast.expr, scope: Scope) -> bool:
        """Whether a path may be any."""
        return any(not re.search(r"\w", text) for text in self._paths.of(path, scope))

    def _cells(self, node: ast.expr, scope: Scope, depth: int) -> frozenset[object]:
        """What holds the whole of a path: variables, attributes by the classes that they are of, an expression."""
        key = node, scope, depth
        known = self._holding.get(key)
        if known is None:
            known = self._holding[key] = frozenset(self._found_cells(node, scope, depth))
        return known

    def _found_cells(self, node: ast.expr, scope: Scope, depth: int) -> Iterable[object]:
        given = taken_as_it_is(self._program, node, scope)
        if given is not node:
            return self._cells(given, scope, depth)
        if isinstance(node, ast.Subscript):
            values = self._program.flow.values(node.value, scope)
            filled = {value.site for value in values if isinstance(value.site, (ast.Dict, ast.List))}
            # ``paths = {}``, which a function fills with the paths of what it writes, and gives back.
            return {*(site for site in filled if not _elements(site)), (ast.unparse(node), scope.node)}
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return {(ast.unparse(node), scope.node)}
        found: set[object] = set()
        key = self._program.flow.key(node, scope)
        if key is not None:
            found.add(key)
        if isinstance(node, ast.Attribute):
            found |= {(holder, node.attr) for holder in self._cells(node.value, scope, depth)}
            text = blocks.path_of(node) or ""
            if text and not text.startswith("self."):
                found.add(text)  # one object of settings goes by one name
        for value, at in self._paths.assigned(node, scope) if depth else ():
            # Other classes of the file may have an attribute of that name.
            if isinstance(node, ast.Name) or self._program.flow.key(node, at) in (key, None):
                found |= self._cells(value, at, depth - 1)
        return found

    def _is_in_another_folder(self, read: Site, path: ast.expr, change: Site, other: ast.expr) -> bool:
        """Whether a change is in a folder that the script names itself, and the path that is read begins otherwise.

        What both have behind that, such as the name of a data set, does not say where the files are.
        """
        ends = list(self._heads.of(other, change.scope))
        if not ends or not all(isinstance(end, ast.Constant) and _NAMED.match(str(end.value)) for end in ends):
            return False
        return not self._heads.behind(path, read.scope) & self._heads.behind(other, change.scope)

    # ---- variables -------------------------------------------------------------------------------------------

    def _share_variable(
        self, read: Site, path: ast.expr, change: Site, other: ast.expr, *, by_item: bool = False
    ) -> bool:
        """Whether both paths are made of one variable; of settings, where asked for, of one item of them."""
        ones = self._behind(path, read.scope, by_item=by_item)
        return not ones.isdisjoint(self._behind(other, change.scope, by_item=by_item))

    def _behind(self, node: ast.expr, scope: Scope, *, by_item: bool = False) -> frozenset[tuple[object, object]]:
        """The variables and attributes that a path is made of, and those that these are made of."""
        key = node, scope, by_item
        if key not in self._variables:
            found: set[tuple[object, object]] = set()
            pending: list[tuple[ast.AST, Scope, int]] = [(node, scope, _DEPTH)]
            while pending:
                part, where, depth = pending.pop()
                item = _item_of(part) if by_item else None
                if item is not None:
                    found |= {(variable, item[1]) for variable in self._behind(item[0], where)}
                    continue
                if not isinstance(part, (ast.Name, ast.Attribute)) or blocks.path_of(part) is None:
                    pending.extend((child, where, depth) for child in self._parts(part))
                    continue
                variable = self._variable(part, where)
                if variable is None or variable in found:
                    continue
                found.add(variable)
                if depth:
                    pending.extend((value, at, depth - 1) for value, at in self._paths.assigned(part, where))
            self._variables[key] = frozenset(found)
        return self._variables[key]

    @staticmethod
    def _parts(node: ast.AST) -> list[ast.AST]:
        """What is evaluated for a value, without the function that is called for it.

        What is put behind a piece of a name, as in ``f"{folder}/fold{number}"``, says nothing of where the file is.
        """
        if isinstance(node, ast.JoinedStr):
            ahead = [None, *node.values]
            return [part for part, before in zip(node.values, ahead, strict=False) if not _is_piece(before)]
        if not isinstance(node, ast.Call):
            return list(children(node))
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*receiver, *node.args, *(item.value for item in node.keywords)]

    def _variable(self, node: ast.Name | ast.Attribute, scope: Scope) -> tuple[str, object] | None:
        """One variable: a name with its body, an attribute by its text; none for what a library holds."""
        text = blocks.path_of(node) or ""
        values = self._program.flow.values(node, scope)
        if any(value.kind in ("external", "module") for value in values):
            return None
        if isinstance(node, ast.Name):
            return text, scope.owner(node.id).node
        return text, scope.module if text.startswith("self.") else None


def _item_of(node: ast.AST) -> tuple[ast.expr, str] | None:
    """What holds an item under a name, and the name: ``settings["folder"]``, ``settings.get("folder")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return (node.value, node.slice.value) if isinstance(node.slice.value, str) else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        key = node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return node.func.value, key.value
    return None


def _elements(node: ast.Dict | ast.List) -> list[ast.expr]:
    return node.values if isinstance(node, ast.Dict) else node.elts


def _is_piece(before: ast.expr | None) -> bool:
    """Whether a literal ends within a name, so that what follows it completes that."""
    return isinstance(before, ast.Constant) and isinstance(before.value, str) and before.value[-1:].isalnum()


def _are_named(*texts: str) -> bool:
    """Whether of the names of the files themselves words are known: ``cached_*``, ``*scores.json``."""
    return all(_WORD.search(_EXTENSION.sub("", text.rpartition("/")[2])) for text in texts)


def _share_text(one: str, other: str, without_extension: bool) -> bool:
    """Whether two texts that can be the same have a piece in common: not only gaps that take in all of the other."""
    if one == other and NOW not in one:
        return True
    if without_extension:
        one, other = _EXTENSION.sub("", one), _EXTENSION.sub("", other)
    one, other = (re.sub("|".join((NOW, OWN, NUMBER)), UNKNOWN, text) for text in (one, other))
    return share_piece(one, other)
