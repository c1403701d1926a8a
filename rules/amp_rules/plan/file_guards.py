"""Who writes files in several processes: statements and calls that are left to the main process."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.constant_tests import ConstantTests
from amp_rules.plan.declining import Declined
from amp_rules.plan.downloads import bodies_only_in_turns, nodes_of
from amp_rules.plan.other_places import run_only_there, written_elsewhere
from amp_rules.roles.file_effects import FileEffect, effect_names, file_effects, makes_folder, try_that_expects
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.made_folders import folder_made
from amp_rules.roles.new_folders import looks_for
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.skippable import Skippable
from amp_rules.roles.uncalled import uncalled
from amp_rules.roles.write_probes import write_probes
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.file_access import (
    ARCHIVES,
    ARRAYS_IN_FILES,
    ENTERERS,
    FILE_READS,
    FOLDER_ERRORS,
    LOCKED_WHILE_OPEN,
    LOOKING_METHODS,
    LOOKS,
    MAKES_FOLDERS,
    SETS_RIGHTS,
)
from amp_rules.torch.writers import WRITERS

_PATHS = frozenset({"os.path.join", "os.path.basename", "os.path.dirname", "os.path.splitext", "builtins.sorted"})
"""Functions that make one path of another."""
_NEAR = 4
"""Statements above a removal in which its list of files is made; what is made further above, all processes make."""


@dataclass
class FileGuards:
    """What the main process does alone.

    Attributes:
        effects: every call that changes files and is not each process's own affair.
        statements: those that only the main process runs.
        calls: those that it alone makes, of which all processes compute the arguments; the functions that are called.
        in_turns: what the processes run one after the other.
        reasons: what cannot be left to one process.
    """

    effects: list[FileEffect] = field(default_factory=list)
    statements: dict[ast.stmt, Module] = field(default_factory=dict)
    calls: list[Site] = field(default_factory=list)
    in_turns: frozenset[ast.AST] = frozenset()
    reasons: list[Declined] = field(default_factory=list)


def file_guards(
    program: Program,
    paths: Paths,
    downloads: list[tuple[Module, ast.stmt]],
    guarded: Callable[[Module, ast.AST], bool] | None = None,
    meets: frozenset[ast.AST] = frozenset(),
) -> FileGuards:
    """Decide for every call that changes files.

    Args:
        program: the program.
        paths: which files its expressions name.
        downloads: statements that each process runs in turn.
        guarded: whether the script leaves a place to one process already.
        meets: nodes that all processes have to run.
    """
    return _Decision(program, paths, downloads, guarded or is_guarded, meets).made()


class _Decision:
    def __init__(
        self,
        program: Program,
        paths: Paths,
        downloads: list[tuple[Module, ast.stmt]],
        guarded: Callable[[Module, ast.AST], bool],
        meets: frozenset[ast.AST],
    ) -> None:
        self._program = program
        self._guarded = guarded
        self._paths = paths
        self._off = ConstantTests(program)
        self._skippable = Skippable(program, meets)
        # Under ``main_process_first`` each process in turn needs all that it does.
        in_turns = nodes_of(downloads)
        self._in_turns = bodies_only_in_turns(program, downloads)
        self._scopes: dict[ast.stmt, Scope] = {}
        self._guards = FileGuards(in_turns=frozenset(in_turns))

    def made(self) -> FileGuards:
        found = self._guards
        effects = file_effects(self._program)
        probes = write_probes(effects)
        found.effects = [effect for effect in effects if effect.call not in probes and self._is_shared(effect)]
        found.effects.extend(self._folders_of_this_moment())
        found.effects.extend(self._folders_made_anew(found.effects))
        found.effects = [effect for effect in found.effects if not self._is_of_a_folder_of_all(effect, found.effects)]
        opened = {effect.call for effect in found.effects if effect.keeps_open and not effect.if_alone}
        for effect in found.effects:
            if effect.statement in found.statements or any(
                parent in found.statements for parent in blocks.enclosing(effect.module, effect.call)
            ):
                continue
            if not self._guard(effect, opened):
                self._call(effect)
        self._add_folders_made_again()
        self._lift()
        self._leave_other_places()
        self._join_neighbours()
        self._drop_inner()
        self._functions_as_values()
        return found

    def _is_shared(self, effect: FileEffect) -> bool:
        """Whether all processes would change the same files; what nothing calls, or turns on, changes none."""
        if not uncalled(self._program).isdisjoint(effect.module.ancestors(effect.call)):
            return False
        if effect.body in self._in_turns or self._guarded(effect.module, effect.call):
            return False
        if self._off.keep_out(effect.module, effect.call):
            return False
        return not self._paths.is_own(effect.paths, effect.scope)

    def _is_of_a_folder_of_all(self, effect: FileEffect, effects: list[FileEffect]) -> bool:
        """Whether a call gives rights to a folder that each process makes just above: they are the same every time."""
        if not self._program.callee_names(effect.call, effect.scope) & SETS_RIGHTS or not effect.paths:
            return False
        where = blocks.place(effect.module, effect.statement)
        path, changing = ast.dump(effect.paths[0]), {item.call for item in effects}
        for statement in where.suite[: where.index]:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and call not in changing:
                folder = folder_made(self._program, call, effect.scope)
                if folder is not None and ast.dump(folder) == path:
                    return True
        return False

    def _folders_of_this_moment(self) -> list[FileEffect]:
        """Folders that are named after the time: the others would be empty, and stay."""
        if self._program.calls_to(ENTERERS):
            return []  # each process may go into its own
        found: list[FileEffect] = []
        others: list[FileEffect] = []
        for call, body, scope in self._program.calls():
            if self._program.callee_names(call, scope) & WRITERS:
                continue  # one logs anyway
            folder = folder_made(self._program, call, scope)
            if folder is not None:
                of_this_moment = self._paths.is_of_this_moment(folder, scope)
                made = FileEffect(scope.module, scope, body, call, call, (folder,))
                (found if of_this_moment else others).append(made)
        # What stands within such a folder, or is made on the way to it, is made by the process that makes the folder.
        while within := [item for item in others if self._is_within(item, found) or _is_on_the_way(item, found)]:
            found += within
            others = [item for item in others if item not in within]
        return [item for item in found if self._is_shared(item)]

    def _is_within(self, made: FileEffect, others: list[FileEffect]) -> bool:
        """Whether the path of a folder is made from the variable that names another: ``inner = outer / "logs"``."""
        outer = {blocks.path_of(path) for item in others if item.body is made.body for path in item.paths} - {None}
        given = [
            value
            for path in made.paths
            if isinstance(path, (ast.Name, ast.Attribute))
            for value, _ in self._paths.assigned(path, made.scope)
        ]
        return any(not blocks.reads(value).isdisjoint(outer) for value in [*made.paths, *given])

    def _folders_made_anew(self, effects: list[FileEffect]) -> list[FileEffect]:
        """Folders that are emptied, or made under another name, where they are there already, by the whole ``try``."""
        changing = {effect.call for effect in effects}
        found = []
        for call, body, scope in self._program.calls():
            module = scope.module
            block = try_that_expects(module, call, FOLDER_ERRORS) if makes_folder(self._program, call, scope) else None
            if block is None or self._guarded(module, call) or body in self._in_turns:
                continue
            handled = {node for handler in block.handlers for node in walk(handler)}
            if changing.isdisjoint(handled) or not self._skippable.alone(module, scope, [block]):
                continue
            assert isinstance(call.func, (ast.Name, ast.Attribute))
            folder = call.args[0] if self._program.callee_names(call, scope) else call.func
            path = folder.value if folder is call.func and isinstance(folder, ast.Attribute) else folder
            effect = FileEffect(module, scope, body, call, call, (path,), fills_folder=True)
            self._add(effect, [block])
            found.append(effect)
        return found

    # ---- statements ----------------------------------------------------------------------------------------

    def _guard(self, effect: FileEffect, opened: set[ast.Call]) -> bool:
        """Leave the statement of a call, or the life of the file that it opens, to the main process, if that does."""
        statement = effect.statement
        for block in self._opening_blocks(effect, opened):
            if self._skippable.alone(effect.module, effect.scope, [block]):
                self._add(effect, [block])
                return True
        others = opened - {effect.call}  # `log = open(log, "w")` is given a path
        if any(value.site in others for path in effect.call.args for value in self._values(path, effect.scope)):
            return True  # what it writes to does nothing on the other processes
        life = self._life(effect) if effect.keeps_open else [statement]
        if not life and effect.if_alone:
            return True
        if not life or not (isinstance(statement, ast.Expr) or effect.keeps_open):
            return False
        if isinstance(life[0], ast.With) or not self._skippable.alone(effect.module, effect.scope, life):
            if (together := self._with_its_loop(effect)) is not None:
                self._add(effect, together)
                return True
            return effect.if_alone  # who needs what a command gives needs it on each process
        self._add(effect, life)
        return True

    def _with_its_loop(self, effect: FileEffect) -> list[ast.stmt] | None:
        """The loop around a call, with the list above that it empties: ``while len(old) > 3: remove(old.pop(0))``."""
        loop = blocks.loop_around(effect.module, effect.statement)
        if loop is None:
            return None
        where = blocks.place(effect.module, loop)
        above = where.suite[where.index - 1] if where.index else None
        made = isinstance(above, ast.Assign) and blocks.writes(above) & blocks.reads(loop)
        for first in (where.index, where.index - 1) if made else (where.index,):
            together = list(where.suite[first : where.index + 1])
            if self._skippable.alone(effect.module, effect.scope, together):
                return together
        return None

    def _values(self, node: ast.expr, scope: Scope) -> list[Value]:
        simple = isinstance(node, (ast.Name, ast.Attribute))
        return list(self._program.flow.values(node, scope)) if simple else []

    def _add(self, effect: FileEffect, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._guards.statements[statement] = effect.module
            self._scopes[statement] = effect.scope

    @staticmethod
    def _opening_blocks(effect: FileEffect, opened: set[ast.Call]) -> list[ast.stmt]:
        """Blocks around a call, or of it, that open a file to write to, the outermost first."""
        around = [effect.statement, *blocks.enclosing(effect.module, effect.statement)]
        return [
            parent
            for parent in reversed(around)
            if isinstance(parent, ast.With)
            and any(node in opened for item in parent.items for node in walk(item.context_expr))
        ]

    @staticmethod
    def _life(effect: FileEffect) -> list[ast.stmt]:
        """The statements of one suite from a call that opens a file to the last that uses it."""
        statement = effect.statement
        if isinstance(statement, ast.Expr):
            return [statement]
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            return []
        name = statement.targets[0].id
        where = blocks.place(effect.module, statement)
        last = where.index
        for index in range(where.index + 1, len(where.suite)):
            if any(isinstance(node, ast.Name) and node.id == name for node in walk(where.suite[index])):
                last = index
        return list(where.suite[where.index : last + 1])

    # ---- single calls --------------------------------------------------------------------------------------

    def _call(self, effect: FileEffect) -> None:
        """Leave a call to the main process, with arguments that all compute."""
        if effect.reads_too and (place := self._read_back(effect)) is not None:
            if self._program.callee_names(effect.call, effect.scope) & LOCKED_WHILE_OPEN:
                self._decline(
                    effect,
                    f"`{effect.module.text(effect.call)}` opens the file to change it, and line {place} reads it: "
                    "meanwhile it is locked for all other processes",
                    'open it with `"r"` if it is only read, or change it in a script of its own',
                )
                return
            self._decline(
                effect,
                f"`{effect.module.text(effect.call)}` is written, and read at line {place}: only one process may write",
                "read the file before `amp.init`, or write it under `if amp.is_main_process():`",
            )
            return
        if not effect.keeps_open and self._result_is_used(effect):
            self._decline(
                effect,
                f"`{effect.module.text(effect.call)}` changes files, and what it gives is used",
                "write it under `if amp.is_main_process():`, and send the result to all processes",
            )
            return
        self._guards.calls.append(Site(effect.module, effect.scope, effect.body, effect.call.func))

    def _read_back(self, effect: FileEffect) -> int | None:
        """The line of a read from what a call opens; an array that is a file is read wherever it goes."""
        is_array = bool(self._program.callee_names(effect.call, effect.scope) & ARRAYS_IN_FILES)
        for node, _, scope in self._program.nodes():
            owner: ast.AST | None = None
            if is_array and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                parent = scope.module.parents[node]
                is_stored = isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)
                owner = None if is_stored or isinstance(parent, ast.Attribute) else node
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILE_READS:
                owner = node.func.value
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                owner = node.value
            if isinstance(owner, ast.expr) and any(
                value.site is effect.call for value in self._program.flow.values(owner, scope)
            ):
                return scope.module.line_on_disk(getattr(node, "lineno", 1))
        return None

    def _result_is_used(self, effect: FileEffect) -> bool:
        parent = effect.module.parents[effect.call]
        if isinstance(parent, (ast.If, ast.While, ast.Compare, ast.Assert, ast.UnaryOp, ast.Subscript)):
            return True
        if not (isinstance(parent, (ast.Assign, ast.AnnAssign)) and parent.value is effect.call):
            return False
        names = blocks.writes(parent)
        return any(
            isinstance(node, (ast.Name, ast.Attribute))
            and isinstance(node.ctx, ast.Load)
            and blocks.path_of(node) in names
            for node in effect.module.nodes
        )

    def _decline(self, effect: FileEffect, message: str, recipe: str) -> None:
        found = declining.decline(declining.FILES, effect.module, effect.call, message, recipe)
        self._guards.reasons.append(found)

    def _functions_as_values(self) -> None:
        """Functions that change files and are handed on: ``map(os.remove, old)``, ``Thread(target=torch.save)``."""
        names = effect_names()
        inner = {child for statement in self._guards.statements for child in walk(statement)}
        for node, body, scope in self._program.nodes():
            if not isinstance(node, ast.Call) or node in inner:
                continue
            handed = [*node.args, *(item.value for item in node.keywords)]
            handed = [item for item in handed if isinstance(item, ast.Attribute)]
            handed = [item for item in handed if self._program.names(item, scope) & names]
            if handed and not self._guarded(scope.module, node):
                self._guards.calls += [Site(scope.module, scope, body, item) for item in handed]

    # ---- what is around ------------------------------------------------------------------------------------

    def _add_folders_made_again(self) -> None:
        """Take in the lines that make a folder again, and those in it, which the main process has removed above."""
        for effect in [item for item in self._guards.effects if item.removes and item.paths]:
            if effect.statement not in self._guards.statements:
                continue
            where = blocks.place(effect.module, effect.statement)
            for below in where.suite[where.index + 1 :]:
                call = below.value if isinstance(below, ast.Expr) else None
                folder = folder_made(self._program, call, effect.scope) if isinstance(call, ast.Call) else None
                if folder is None or not _is_in(folder, effect.paths[0]):
                    break
                self._add(effect, [below])

    def _lift(self) -> None:
        """Take in loops, and looks at files, that do nothing but what runs on the main process only."""
        found = self._guards.statements
        pending = list(found)
        while pending:
            statement = pending.pop()
            module = found.get(statement)
            if module is None:
                continue
            parent = module.parents[statement]
            scope = self._scopes[statement]
            if not self._may_take_in(parent, module, scope):
                if not self._is_whole(parent):
                    continue
                parent = module.parents[parent]  # it serves the loop that it stands in
                if not isinstance(parent, ast.For) or not self._may_take_in(parent, module, scope):
                    continue
            assert isinstance(parent, (ast.For, ast.While, ast.If, ast.With))
            inner = [*parent.body, *getattr(parent, "orelse", ())]
            if not all(item in found or self._serves_alone(item, parent, scope) for item in inner):
                continue
            if isinstance(parent, ast.If) and blocks.is_elif(module, parent):
                continue
            if self._skippable.alone(module, scope, [parent]):
                for item in inner:
                    found.pop(item, None)
                found[parent] = module
                self._scopes[parent] = scope
                pending.append(parent)
            elif isinstance(parent, ast.While) and self._looks(parent.test, scope):
                self._guards.reasons.append(
                    declining.decline(
                        declining.FILES,
                        module,
                        parent,
                        f"`{module.text(parent.test)}` looks at files that another process changes, in a loop that "
                        "does more than that",
                        "run the loop under `if amp.is_main_process():`",
                    )
                )

    def _may_take_in(self, parent: ast.AST, module: Module, scope: Scope) -> bool:
        """Whether a statement is one that can go with what stands in it."""
        if isinstance(parent, ast.With):
            return all(self._opens_archive(item.context_expr, scope) for item in parent.items)
        if isinstance(parent, ast.If):
            return self._looks(parent.test, scope) or self._is_beside(parent, module)
        return isinstance(parent, (ast.For, ast.While)) and not parent.orelse

    def _is_whole(self, statement: ast.AST) -> bool:
        """Whether all that stands under a condition runs on the main process only."""
        return (
            isinstance(statement, ast.If)
            and not statement.orelse
            and all(item in self._guards.statements for item in statement.body)
        )

    def _opens_archive(self, node: ast.expr, scope: Scope) -> bool:
        return isinstance(node, ast.Call) and bool(self._program.callee_names(node, scope) & ARCHIVES)

    def _serves_alone(self, statement: ast.stmt, parent: ast.stmt, scope: Scope) -> bool:
        """Whether a statement of a loop makes or lists a folder, or a path, for what runs on the main process only."""
        if not isinstance(parent, ast.For):
            return False
        if self._is_whole(statement):
            return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            return bool(self._program.callee_names(statement.value, scope) & MAKES_FOLDERS)
        calls = [node for node in walk(statement) if isinstance(node, ast.Call)]
        return isinstance(statement, ast.Assign) and all(
            bool(names := self._program.callee_names(call, scope)) and names <= LOOKS | _PATHS for call in calls
        )

    def _is_beside(self, condition: ast.If, module: Module) -> bool:
        """Whether what stands right above or below a condition runs on the main process only: one guard takes both."""
        where = blocks.place(module, condition)
        beside = where.suite[max(0, where.index - 1) : where.index + 2]
        return any(item in self._guards.statements for item in beside)

    def _leave_other_places(self) -> None:
        """Leave all to the main process where a file that cannot be written is written at another place."""
        found = self._guards.statements
        written = {*found, *(site.node for site in self._guards.calls)}
        lifted: list[ast.stmt] = []
        for sites in written_elsewhere(self._program, self._skippable, written, self._is_left):
            for site in sites:
                found[site.statement] = site.module
                self._scopes[site.statement] = site.scope
                lifted.append(site.statement)
        bodies = run_only_there(self._program, lifted) if lifted else set()
        for statement in [item for item, module in found.items() if blocks.body_of(module, item) in bodies]:
            del found[statement]
        self._guards.calls = [site for site in self._guards.calls if site.body not in bodies]

    def _is_left(self, site: Site) -> bool:
        """Whether one process runs a place, or each in turn."""
        return self._guarded(site.module, site.node) or site.body in self._in_turns

    def _looks(self, node: ast.AST, scope: Scope) -> bool:
        return looks_at_files(self._program, node, scope)

    def _join_neighbours(self) -> None:
        """Take in the look at files above that serves only what runs on the main process only."""
        found = self._guards.statements
        for statement in list(found):
            module, scope = found[statement], self._scopes[statement]
            where = blocks.place(module, statement)
            last = where.index
            while last + 1 < len(where.suite) and where.suite[last + 1] in found:
                last += 1
            for first in range(where.index - 1, max(-1, where.index - 1 - _NEAR), -1):
                run = where.suite[first : last + 1]
                is_plain = isinstance(where.suite[first], (ast.Assign, ast.Expr))
                if is_plain and self._looks(where.suite[first], scope) and self._skippable.alone(module, scope, run):
                    for item in run:
                        found.setdefault(item, module)
                        self._scopes[item] = scope
                    break

    def _drop_inner(self) -> None:
        """Leave out what stands within something that runs on the main process only anyway."""
        found = self._guards.statements
        inner = {child for statement in found for child in walk(statement) if child is not statement}
        self._guards.statements = {statement: module for statement, module in found.items() if statement not in inner}
        whole = inner | set(found)
        self._guards.calls = [
            site for site in self._guards.calls if blocks.statement_of(site.module, site.node) not in whole
        ]


def _is_in(folder: ast.expr, outer: ast.expr) -> bool:
    """Whether a folder is another one, or is made from it: ``join(outer, "images")``, ``"outer/images"``."""
    if ast.dump(folder) == ast.dump(outer):
        return True
    if isinstance(folder, ast.Call) and blocks.path_of(folder.func) == "os.path.join" and folder.args:
        return _is_in(folder.args[0], outer)
    if isinstance(folder, ast.BinOp) and isinstance(folder.op, ast.Div):
        return _is_in(folder.left, outer)
    inner, text = literal(folder), literal(outer)
    return isinstance(inner, str) and isinstance(text, str) and inner.startswith(f"{text}/")


def _is_on_the_way(made: FileEffect, others: list[FileEffect]) -> bool:
    """Whether a folder is made only where another one is missing, which may be one in it."""
    tests = [item.test for item in blocks.enclosing(made.module, made.call) if isinstance(item, ast.If)]
    paths = {ast.unparse(path) for item in others if item.body is made.body for path in item.paths}
    return any(looks_for(test, path) for test in tests for path in paths)


def is_guarded(module: Module, node: ast.AST) -> bool:
    """Whether the script has a condition of this kind already."""
    return any(
        isinstance(parent, ast.If) and "is_main_process" in ast.unparse(parent.test)
        for parent in blocks.enclosing(module, node)
    )


def looks_at_files(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether evaluating a node asks what files there are."""
    return any(
        isinstance(part, ast.Call)
        and (
            bool(program.callee_names(part, scope) & LOOKS)
            or (
                isinstance(part.func, ast.Attribute)
                and part.func.attr in LOOKING_METHODS
                and all(
                    value.kind == "constant" or value.name.startswith("pathlib.")  # a text has no such method
                    for value in program.flow.values(part.func.value, scope)
                )
                and not program.flow.callees(part)
            )
        )
        for part in walk(node)
    )
