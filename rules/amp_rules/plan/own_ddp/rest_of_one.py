"""Numbers of the batches of one process that a script shows anywhere, and that no other note names.

The abstract run of the ranks knows of each expression whether it rests on the batches of one process, and what
exchanges make the same on all. What it says of shown numbers, less what has a note already, is what is left to tell:
however the script adds up, keeps, hands on, or shows them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import CallSite
from amp_rules.plan.clock_times import is_time
from amp_rules.plan.own_ddp.lookups import may_run_anything
from amp_rules.plan.own_ddp.meters_shown import behind_loops
from amp_rules.plan.own_ddp.of_themselves import names_process
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Named, Shares
from amp_rules.plan.own_ddp.shown_within import (
    are_of_batches,
    is_of_tag,
    only_divides,
    reads_alike,
    reads_groups,
    shown_values,
)
from amp_rules.plan.own_ddp.sizes_told import is_filled_alike, is_told_sizes, numbers_in, numbers_of, variables_in
from amp_rules.plan.own_ddp.whole_by_flag import is_whole_by_flag
from amp_rules.plan.rest_shown import is_key, prints, reads_of, root_of, shows, taken_from
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import added_to
from amp_rules.plan.ways_to_show import CARRYING, tells
from amp_rules.ranks.origins import Kind
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import called_name, is_text, values_given, walk
from amp_rules.torch.replication import CLOCKS

_MAX_HELPERS = 3
"""Functions between one that has a number and the one that shows it: ``log(message)``, ``print_rank_0(text)``."""

_FILLING = frozenset({"append", "extend", "update"})
"""Methods of lists and dictionaries that put something into them."""

_TEXT = frozenset({"format", "ljust", "rjust", "strip", "upper", "lower", "title", "replace"})
"""Methods that put a text together."""


def rest_of_one(own: OwnDdp, shares: Shares, told: Named) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first place of each function that shows such numbers, with all that it shows."""
    found: defaultdict[ast.AST, dict[str, Site]] = defaultdict(dict)
    for site, name in _Rest(own, shares, told).shown():
        found[site.body].setdefault(name, site)
    for body, everything in found.items():
        told.update((body, name) for name in everything)
        first = min(everything.values(), key=lambda site: site.line)
        yield first.module, first.node, f"AMP233: {are_of_batches(everything)}"


class _Rest:
    """Finds them in one program."""

    def __init__(self, own: OwnDdp, shares: Shares, told: Named) -> None:
        self._own = own
        self._program = own.program
        self._shares = shares
        self._told = told

    def shown(self) -> Iterator[tuple[Site, str]]:
        """Yield the places, each with a variable that it shows."""
        for site, name in self._shares.shown:
            call = site.node
            assert isinstance(call, ast.Call)
            if not (tells(call) or prints(self._program, call, site.scope)):
                continue  # a file of numbers
            if is_of_tag(site.module, call) or self._is_of_each(site, call):
                continue
            if called_name(call) == "plot" and _are_coordinates(name):
                continue
            given, root = shown_values(call), root_of(name)
            told = {path for body, path in self._told if body is site.body}
            if any(map(names_process, given)) or only_divides(call, name, told):
                continue  # what every process says of itself, and the number of samples below a sum
            if any(root in numbers_in(value) and not self._is_within_call(site, value, root) for value in given):
                yield from self._told_of(site, root, _MAX_HELPERS)
        yield from self._dictionaries()

    def _dictionaries(self) -> Iterator[tuple[Site, str]]:
        """Yield the places that show a whole dictionary of the function, whose entries are numbers of batches.

        ``scores[name] = scores.get(name, 0.0) + value.item()``, and ``print(scores)``.
        """
        for call, body, scope in self._program.calls():
            if not shows(self._program, call, scope) or not (tells(call) or prints(self._program, call, scope)):
                continue
            site = Site(scope.module, scope, body, call)
            parts = [part for value in values_given(call) for part in walk(value) if isinstance(part, ast.Name)]
            held = {part.id for part in parts if _is_shown_whole(site, part)}
            for name in sorted(held):
                entries = self._entries(site, name)
                if not any(self._is_made_of_batch(site, value) for value in entries):
                    continue
                if any((body, root_of(path)) in self._told for value in entries for path in blocks.reads(value)):
                    continue  # what it holds has a note
                if not self._is_run(site) or (body, name) in self._told or self._is_of_each(site, call):
                    continue
                if any(map(names_process, shown_values(call))):
                    continue
                if not self._shares.metrics.unfollowed_exchanges.may_tell_of(body, name):
                    yield site, name

    def _entries(self, site: Site, name: str) -> list[ast.expr]:
        """What a function puts into a dictionary that it makes itself; nothing where it holds anything else.

        What is no number of a batch is one of all processes for all that is known, unless it is written there, or is a
        rate or a time.
        """
        found: list[ast.expr] = []
        for node in self._program.nodes_of(site.body):
            if not isinstance(node, (ast.Assign, ast.AugAssign)):
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Subscript):
                    if blocks.path_of(target.value) != name:
                        continue
                    is_number = self._is_of_batch(node.value) or literal(node.value) is not ...
                    if not is_number and (reads_groups(node.value) or is_time(self._program, site, node.value)):
                        continue
                    if isinstance(node, ast.Assign) and not is_number:
                        return []
                    found.append(node.value)
                elif blocks.path_of(target) == name and not isinstance(node.value, ast.Dict):
                    return []
        return found

    # ---- which places --------------------------------------------------------------------------------------------

    def _is_of_each(self, site: Site, call: ast.Call) -> bool:
        """Whether a writer or a file that each process may have for itself takes what is shown."""
        if not isinstance(call.func, ast.Attribute) or prints(self._program, call, site.scope):
            return False  # the object that holds ``print`` is no writer
        for value in self._program.flow.values(call.func.value, site.scope):
            module = self._program.module_of(value.site) if isinstance(value.site, ast.Call) else None
            if module is not None and isinstance(value.site, ast.Call) and self._own.may_be_of_each(module, value.site):
                return True
        return False

    def _is_within_call(self, site: Site, value: ast.expr, name: str) -> bool:
        """Whether a variable is only given to what computes something else of it: ``print(score(model, x))``."""
        computing = [
            part
            for part in walk(value)
            if isinstance(part, ast.Call)
            and called_name(part) not in CARRYING | _TEXT
            and any(name in numbers_in(item) for item in (*part.args, *(given.value for given in part.keywords)))
        ]
        inside = {node for part in computing for item in (*part.args, *part.keywords) for node in walk(item)}
        uses = [node for node in variables_in(value) if root_of(ast.unparse(node)) == name]
        return bool(uses) and all(node in inside for node in uses)

    def _is_run(self, site: Site) -> bool:
        """Whether several processes train where a place is, or the first of them alone comes to it."""
        if site.module not in self._own.modules or site.body in self._own.uncalled or site.body in self._evaluated:
            return False
        if any(origin.kind is Kind.BATCH for origin in self._shares.ranks.control_origins(site.node)):
            return False  # all that stands behind a decision by a batch seems to rest on it
        return self._own.reach(site.module, site.node) is not Reach.UNKNOWN

    @cached_property
    def _evaluated(self) -> set[ast.AST]:
        """Functions with an evaluation of a share that has a note as a whole, or with one of all of the data."""
        alone = {blocks.body_of(use.module, use.node) for use in self._shares.metrics.of_one_alone()}
        metrics = self._shares.metrics
        alone |= {
            use.body
            for use in self._own.data.evaluated
            if is_whole_by_flag(self._own, use, metrics.samplers_of(use))
            and self._own.is_of_first_alone(use.module, use.node)
        }
        return alone | {loop.body for loop in metrics.unfollowed(metrics.found)}

    # ---- which numbers -------------------------------------------------------------------------------------------

    def _told_of(self, site: Site, name: str, helpers: int) -> Iterator[tuple[Site, str]]:
        """Yield the place, or those of the callers that hand on what it shows."""
        if not self._is_run(site) or (site.body, name) in self._told:
            return
        nodes = list(self._program.nodes_of(site.body))
        made = self._made(site, name)
        sources = behind_loops(nodes, {name})
        if self._is_told(site, nodes, sources - self._of_other_loops(site, nodes, name, sources), made):
            return
        info = self._program.function_of(site.body)
        handed = self._handed(info, nodes, name, made, sources) if info is not None else {}
        if handed:
            if self._is_put_together(nodes, sources):
                return
            for method, parameters in handed.items() if helpers else ():
                for caller in self._program.flow.callers(method):
                    for parameter in sorted(parameters):
                        yield from self._handed_on(method, parameter, caller, helpers)
            return
        if self._keeps_itself(info, nodes, sources) or not self._is_number(site, name, made):
            return
        if not self._may_be_of_all(site, nodes, name, sources):
            yield site, name

    def _is_put_together(self, nodes: list[ast.AST], paths: set[str]) -> bool:
        """Whether a function that hands numbers on may get those of all: ``told = mean_of_all(comm, self.kept)``."""
        written = [node for node in nodes if blocks.writes_itself(node) & paths]
        calls = [part for node in written for part in walk(node) if isinstance(part, ast.Call)]
        return any(map(self._shares.metrics.unfollowed_exchanges.puts_together, calls))

    def _handed(
        self, info: FunctionFacts, nodes: list[ast.AST], name: str, made: list[ast.expr], sources: set[str]
    ) -> dict[FunctionFacts, set[str]]:
        """The functions of which a parameter is what a variable only carries on: this one, or other methods.

        Those are the ones that put it into the object: ``logger.push(metrics)`` keeps what ``logger.show()`` prints.
        """
        kept = self._kept(info, sources)
        if kept:
            return kept
        parameters = self._parameters(info, nodes, name, made, sources)
        return {info: parameters} if parameters else {}

    def _kept(self, info: FunctionFacts, sources: set[str]) -> dict[FunctionFacts, set[str]]:
        """The methods that give their object's attributes, of which a variable is made, one of their parameters."""
        if info.cls is None or info.receiver is None:
            return {}
        attributes = {path.split(".")[1] for path in sources if path.startswith(f"{info.receiver}.")}
        found: dict[FunctionFacts, set[str]] = {}
        for method in info.cls.methods.values() if attributes else ():
            inner = list(blocks.walk_body(method.node))
            paths = {f"{method.receiver}.{attribute}" for attribute in attributes}
            put = behind_loops(inner, paths)
            if not _only_carries(inner, put):
                continue
            given = {root_of(path) for path in put} & set(method.parameters) - {method.receiver or ""}
            if given:
                found[method] = given
        return found

    def _keeps_itself(self, info: FunctionFacts | None, nodes: list[ast.AST], sources: set[str]) -> bool:
        """Whether a number is a term of a loss within a model, or one that an object keeps and others tell of.

        What a method of the object computes of batches has no other place: ``self.loss = criterion(self.model(x), y)``.
        """
        if info is None or info.receiver is None or info.cls is None:
            return False
        values = self._program.flow.values(ast.Name(info.receiver, ast.Load()), self._program.flow.scopes[info.node])
        if any(map(is_module, values)):
            return True
        kept = {
            part.attr
            for part in nodes
            if isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id == info.receiver
            and ast.unparse(part) in sources
            and self._is_of_batch(part)
        }
        methods = info.cls.methods.values()
        if any(
            body is one.node and path.startswith(f"{one.receiver}.") and path.split(".")[1] in kept
            for body, path in self._told
            for one in methods
        ):
            return True
        return bool(kept) and not any(self._computes(one, attribute) for one in methods for attribute in kept)

    def _computes(self, method: FunctionFacts, attribute: str) -> bool:
        """Whether a method gives its object's attribute what it computes of batches."""
        scope = self._program.flow.scopes[method.node]
        site, path = Site(scope.module, scope, method.node, method.node), f"{method.receiver}.{attribute}"
        return any(
            self._is_made_of_batch(site, node.value) and not _only_carries([node], {path})
            for node in self._program.nodes_of(method.node)
            if isinstance(node, ast.Assign) and path in blocks.writes_itself(node)
        )

    def _parameters(
        self, info: FunctionFacts, nodes: list[ast.AST], name: str, made: list[ast.expr], sources: set[str]
    ) -> set[str]:
        """The parameters that a variable only carries on: ``for key, value in losses.items():``."""
        if name in info.parameters and not made:
            return {name}
        if not made or not _only_carries(nodes, sources):
            return set()
        return {root_of(path) for path in sources - {name}} & set(info.parameters) - {info.receiver or ""}

    def _handed_on(self, info: FunctionFacts, name: str, caller: CallSite, helpers: int) -> Iterator[tuple[Site, str]]:
        given = info.argument(caller.call, name)
        if given is None or may_run_anything(self._program, caller.call) or not self._is_of_batch(given):
            return
        site = calling(caller)
        if any(map(names_process, values_given(caller.call))) or reads_alike(self._own, site, given):
            return
        known = {root_of(path) for path in numbers_in(given)}
        held: set[str] = set()
        for part in variables_in(given):
            root = root_of(ast.unparse(part))
            if root not in known or is_key(site.module, part) or not self._is_of_batch(part):
                continue
            if not self._is_within_call(site, given, root):
                # ``{key: item * weight for key, item in losses.items()}`` hands on the numbers of ``losses``.
                held.add(root_of(ast.unparse(taken_from(site.module, part))))
        for path in sorted(held):
            yield from self._told_of(site, path, helpers - 1)

    def _made(self, site: Site, name: str) -> list[ast.expr]:
        """What a function gives a variable of its own, and puts into the list or dictionary that it holds."""
        found: list[ast.expr] = []
        for node in self._program.nodes_of(site.body):
            if name in blocks.writes_itself(node):
                value = _given(node, name)
                found += [value] if value is not None else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
                found += node.args if blocks.path_of(node.func.value) == name else []
        return found

    def _is_number(self, site: Site, name: str, made: list[ast.expr]) -> bool:
        """Whether a variable holds what is computed of batches, and not only what they decide on."""
        pieces = [piece for value in made for piece in (_pieces(value) if is_text(value) else [value])]
        if made and not any(self._is_made_of_batch(site, piece) for piece in pieces):
            return False
        if is_filled_alike(self._program, self._shares.ranks, site, name):
            return False
        if any(map(is_text, made)) and any(body is site.body for body, _ in self._told):
            return False  # it tells the numbers that have a note
        node = ast.parse(name, mode="eval").body
        if any(map(is_module, self._program.flow.values(node, site.scope))):
            return False
        # A text may tell the time beside a number.
        if any(map(is_text, made)) and any(
            self._is_of_batch(piece) and not self._is_of_clock(piece) for piece in pieces
        ):
            return True
        return not self._is_speed(site, name, made)

    def _is_speed(self, site: Site, name: str, made: list[ast.expr]) -> bool:
        """Whether a number is made of the clock, and of the sizes of batches.

        What a function makes is so only of a time of its own, or of an object that asks for it: a time at which a
        library gives up decides on what comes after it, and makes no number.
        """
        nodes = [node for node in self._program.nodes_of(site.body) if isinstance(node, (ast.Name, ast.Attribute))]
        timed = [node for node in nodes if self._is_of_clock(node)]
        if not any(root_of(ast.unparse(node)) == name for node in timed):
            return False
        if not made or self._holds_object(site, ast.parse(name, mode="eval").body):
            return True
        sources = set(map(root_of, behind_loops(list(self._program.nodes_of(site.body)), {name})))
        called = {node.func for node in self._program.nodes_of(site.body) if isinstance(node, ast.Call)}
        return any(
            root_of(ast.unparse(node)) in sources and (not self._is_of_batch(node) or self._reads_clock(site, node))
            for node in timed
            if node not in called
        )

    def _holds_object(self, site: Site, node: ast.expr) -> bool:
        values = self._program.flow.values(node, site.scope)
        return any(value.kind == "instance" and not is_module(value) for value in values)

    def _reads_clock(self, site: Site, node: ast.expr) -> bool:
        """Whether an object asks for the time itself."""
        return any(
            value.kind == "instance" and not self._asking.isdisjoint(info.facts for info in value.ref.mro())
            for value in self._program.flow.values(node, site.scope)
        )

    @cached_property
    def _asking(self) -> set[ClassFacts]:
        """The classes with methods that ask for the time."""
        bodies = (self._program.function_of(site.body) for site in self._program.calls_to(CLOCKS))
        return {info.cls for info in bodies if info is not None and info.cls is not None}

    def _is_of_clock(self, value: ast.expr) -> bool:
        return any(origin.kind is Kind.CLOCK for origin in self._shares.ranks.origins(value))

    def _is_made_of_batch(self, site: Site, value: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a value is made of batches by what stands in this function.

        Other calls of the functions on the way may be about batches where these are not.
        """
        if not self._is_of_batch(value) or self._is_alike(site, value):
            return False
        calls = [part for part in walk(value) if isinstance(part, ast.Call) and self._program.flow.callees(part)]
        if any(self._is_given_batches(site, call, seen) for call in calls):
            return True
        # What stands beside them: ``batch.to(device_of_rank())``.
        within = {node for call in calls for node in walk(call)}
        parts = [part for part in numbers_of(value) if part not in within and self._is_of_batch(part)]
        return not (parts or calls) or any(self._holds_batches(site, part, seen) for part in parts)

    def _holds_batches(self, site: Site, part: ast.expr, seen: frozenset[str]) -> bool:
        name = root_of(ast.unparse(part))
        if is_told_sizes(self._program, self._shares.ranks, site, name):
            return False
        made = self._made(site, name) if name not in seen else [ast.Constant(0)]
        return not made or any(self._is_made_of_batch(site, value, seen | {name}) for value in made)

    def _is_given_batches(self, site: Site, call: ast.Call, seen: frozenset[str]) -> bool:
        """Whether a function of the project is given what is of batches, or a loader of a share, besides a model.

        What a model keeps of its batches reaches all that asks it for anything.
        """
        if self._program.roles.modules(call.func, site.scope):
            return True
        if any(info.node in self._taking_unknown for info in self._program.flow.callees(call)):
            return True
        held = call.func.value if isinstance(call.func, ast.Attribute) else None
        earlier = [
            item
            for value in self._program.flow.values(call.func, site.scope)
            if value.kind == "partial" and isinstance(value.site, ast.Call)
            for item in values_given(value.site)[1:]
        ]
        for item in [*values_given(call), *earlier, *([held] if held is not None else [])]:
            values = self._program.flow.values(item, site.scope)
            if any(map(is_module, values)):
                continue
            if any(value.site in self._shares.loaders for value in values):
                return True
            if self._is_of_batch(item) and self._is_made_of_batch(site, item, seen):
                return True
            if item is held and any(value.kind == "instance" for value in values):
                return True
        return False

    @cached_property
    def _taking_unknown(self) -> set[ast.AST]:
        """Functions that take their batches from what nothing is known of."""
        unknown = self._shares.unknown
        return {body for node, body, _ in self._program.nodes() if node in unknown} if unknown else set()

    def _is_alike(self, site: Site, value: ast.expr) -> bool:
        return is_time(self._program, site, value) or reads_alike(self._own, site, value)

    def _is_told(self, site: Site, nodes: list[ast.AST], sources: set[str], made: list[ast.expr]) -> bool:
        """Whether a number is made of what has a note, or is what a function gives back that has a note."""
        if any((site.body, root_of(path)) in self._told for path in sources):
            return True
        called = [part for node in nodes if blocks.writes_itself(node) & sources for part in walk(node)]
        called += [part for value in made for part in walk(value)]
        return any(
            (info.node, root_of(path)) in self._told
            for part in called
            if isinstance(part, ast.Call)
            for info in self._program.flow.callees(part)
            for value in info.returns
            for path in blocks.reads(value)
        )

    def _of_other_loops(self, site: Site, nodes: list[ast.AST], name: str, sources: set[str]) -> set[str]:
        """What a loop that only evaluates adds up under a name that a training loop has for a number of its own.

        ``loss`` of the validation is another one than that of the training, which has a note.
        """
        loops = {
            node: loop
            for node in nodes
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign))
            if (loop := blocks.loop_around(site.module, node)) is not None
        }
        adding = {loop for node, loop in loops.items() if name in added_to(node)}
        if not adding or any(map(self._program.runs_backward, adding)):
            return set()
        training = {node for node, loop in loops.items() if self._program.runs_backward(loop)}
        return {
            path
            for path in sources - {name}
            if any(path in blocks.writes(node) for node in training)
            and any(path in blocks.writes(node) for node, loop in loops.items() if loop in adding)
        }

    def _may_be_of_all(self, site: Site, nodes: list[ast.AST], name: str, sources: set[str]) -> bool:
        """Whether an exchange may have made a number that of all processes.

        What local variables hold is known after each exchange. What objects and containers hold is not.
        """
        metrics = self._shares.metrics
        is_kept = bool(self._kept_parts(site, nodes, set(map(root_of, sources))))
        if (metrics.exchanges if is_kept else metrics.unfollowed_exchanges).may_tell_of(site.body, name):
            return True
        return self._is_given_of_all(nodes, sources)

    def _is_given_of_all(self, nodes: list[ast.AST], sources: set[str]) -> bool:
        """Whether a number is what functions give back that an object keeps, behind an exchange: ``losses.avg``."""
        calls = [
            (part, _place_among(node, part, sources))
            for node in nodes
            if blocks.writes_itself(node) & sources
            for part in walk(node)
            if isinstance(part, ast.Call) and self._is_of_batch(part) and self._program.flow.callees(part)
        ]
        return bool(calls) and all(
            self._gives_of_all(info, place) for call, place in calls for info in self._program.flow.callees(call)
        )

    def _gives_of_all(self, info: FunctionFacts, place: int | None) -> bool:
        scope = self._program.flow.scopes[info.node]
        found = False
        for value in info.returns:
            taken = value.elts[place] if place is not None and isinstance(value, ast.Tuple) else value
            read = [part for part in reads_of(taken) if self._is_of_batch(part)]
            kept = self._kept_parts(Site(scope.module, scope, info.node, taken), read, {*map(_root, read)})
            if len(kept) < len(read):
                return False
            exchanges = self._shares.metrics.exchanges
            if not all(exchanges.may_tell_of(info.node, _root(part)) for part in kept):
                return False
            found = found or bool(kept)
        return found

    def _kept_parts(self, site: Site, nodes: Sequence[ast.AST], roots: set[str]) -> list[ast.expr]:
        """What is read of objects and containers that hold numbers of batches."""
        return [
            part
            for part in nodes
            if isinstance(part, (ast.Attribute, ast.Subscript))
            and isinstance(part.ctx, ast.Load)
            and root_of(ast.unparse(part)) in roots
            and self._is_of_batch(part)
            and self._is_part(site, part)
        ]

    def _is_part(self, site: Site, node: ast.Attribute | ast.Subscript) -> bool:
        """Whether an object keeps what is read here, or its method reads it: ``losses.avg``, ``losses.mean()``.

        ``loss.item()`` is a method of the number itself.
        """
        around = site.module.parents.get(node)
        if not (isinstance(around, ast.Call) and around.func is node):
            return True
        values = self._program.flow.values(node.value, site.scope)
        return any(value.kind == "instance" and not is_module(value) for value in values)

    def _is_of_batch(self, value: ast.expr) -> bool:
        return is_of_batch(value, self._shares.ranks)


def _root(node: ast.expr) -> str:
    return root_of(ast.unparse(node))


def _place_among(node: ast.AST, value: ast.AST, names: set[str]) -> int | None:
    """Which of the values that a call gives back a variable gets: ``loss, score = train(loader)``; None for all."""
    target = node.targets[0] if isinstance(node, ast.Assign) and node.value is value else None
    if not isinstance(target, ast.Tuple) or any(isinstance(item, ast.Starred) for item in target.elts):
        return None
    places = [place for place, item in enumerate(target.elts) if blocks.path_of(item) in names]
    return places[0] if len(places) == 1 else None


def _is_shown_whole(site: Site, node: ast.Name) -> bool:
    """Whether a variable is given itself, or stands in a text: ``f"metrics {scores}"``."""
    return isinstance(site.module.parents[node], (ast.FormattedValue, ast.Call, ast.keyword))


def _are_coordinates(name: str) -> bool:
    """Whether a column of an array is read, which draws one sample: ``line[:, 0]``."""
    node = ast.parse(name, mode="eval").body
    cut = node.slice if isinstance(node, ast.Subscript) else None
    return isinstance(cut, ast.Tuple) and any(isinstance(item, ast.Slice) for item in cut.elts)


def _only_carries(nodes: list[ast.AST], paths: set[str]) -> bool:
    """Whether variables get nothing that is computed anew: what they are given goes through, or is added up."""
    given = [
        value for node in nodes if blocks.writes_itself(node) & paths for value in [_value(node)] if value is not None
    ]
    calls = [part for value in given for part in walk(value) if isinstance(part, ast.Call)]
    return all(called_name(part) in CARRYING | _TEXT for part in calls)


def _pieces(value: ast.expr) -> Iterator[ast.expr]:
    """What a text is put together of: the values in ``f"{now()}: {loss:.3f}"``, ``now() + " %f" % loss``."""
    inner: list[ast.expr] = []
    if isinstance(value, ast.JoinedStr):
        inner = [item.value for item in value.values if isinstance(item, ast.FormattedValue)]
    elif isinstance(value, ast.BinOp) and (is_text(value) or isinstance(value.op, ast.Add)):
        inner = [value.left, value.right]
    elif isinstance(value, ast.Tuple):
        inner = value.elts
    elif isinstance(value, ast.Call) and is_text(value):
        inner = values_given(value)
    if not inner:
        yield value
    for item in inner:
        yield from _pieces(item)


def _given(node: ast.AST, name: str) -> ast.expr | None:
    """What a statement gives a variable; a constant for the number of a round."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        if isinstance(node.iter, ast.Call) and called_name(node.iter) in ("enumerate", "range"):
            target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
            if blocks.path_of(target) == name:
                return ast.Constant(0)
    return _value(node)


def _value(node: ast.AST) -> ast.expr | None:
    value = node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else getattr(node, "value", None)
    return value if isinstance(value, ast.expr) else None
