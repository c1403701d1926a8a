"""Calls: of functions and classes of the project, whose bodies are run; what is a library's is handed on."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from amp_rules.flow.values import Value, without_missing
from amp_rules.ranks.elements import Elements
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.libraries import Arguments, Libraries, exchanged, make_alike
from amp_rules.ranks.memory import ELEMENTS, LENGTH, REST, attribute, element, has_known_keys
from amp_rules.ranks.values import REPLICATED, RankValue, Ref, join_all
from amp_rules.ranks.world import Given, World
from amp_rules.roles.kinds import is_module
from amp_rules.source import blocks
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.syntax import is_super
from amp_rules.torch.containers import CONTAINERS
from amp_rules.torch.distributed import MADE_ALIKE

_MAX_PARTIALS = 3
"""Partial functions that one call may be of: each has its function run once more."""


class Calls:
    """Evaluates calls."""

    def __init__(self, world: World, elements: Elements, libraries: Libraries) -> None:
        self._world = world
        self._memory = world.memory
        self._elements = elements
        self._libraries = libraries
        self._having: dict[tuple[ast.AST, ClassFacts | None], tuple[frozenset[Ref], frozenset[Ref]]] = {}
        self._rests: dict[tuple[ast.arg, ast.Call], ast.arg] = {}
        self._wholes: dict[tuple[ast.Call, ast.Call], ast.Call] = {}

    def call(self, node: ast.Call, frame: Frame) -> RankValue:
        """What a call gives."""
        self._world.note_decided(node, frame)
        receiver = self._receiver(node, frame)
        given = Arguments(
            node,
            receiver,
            [self._argument(item, frame) for item in node.args],
            {item.arg: self._world.evaluate(item.value, frame) for item in node.keywords},
        )
        self._switch_mode(node, given, frame)
        targets = without_missing(self._world.flow.values(node.func, frame.scope))
        classes = [value for value in targets if value.kind == "class"]
        if classes:
            return join_all([self._construct(value, given, frame) for value in classes])
        callees = sorted(self._world.flow.callees(node), key=lambda info: info.place)
        if not callees:
            return self._libraries.call(given, frame)
        partials = sorted((value for value in targets if value.kind == "partial"), key=_place)
        if len(callees) > 1 and not partials:
            callees = [info for info in callees if _takes(info, node)] or callees
        ways = [self._with_earlier(value, given) for value in partials[:_MAX_PARTIALS]] or [given]
        found = [self._run(info, way, targets, frame) for info in callees for way in ways]
        if any(value.kind in ("external", "object", "attribute") and not is_module(value) for value in targets):
            found.append(self._libraries.call(given, frame))
        return join_all(found).unknown() if len(found) > 1 else found[0]

    def _with_earlier(self, target: Value, given: Arguments) -> Arguments:
        """What a function gets that ``partial(function, x)`` stands for: what it was made with comes first."""
        while target.kind == "partial" and isinstance(target.site, ast.Call):
            made, node = target.site, given.node
            whole = self._wholes.get((made, node))
            if whole is None:
                arguments = [*made.args[1:], *node.args]
                later = {item.arg for item in node.keywords}
                keywords = [*(item for item in made.keywords if item.arg not in later), *node.keywords]
                whole = self._wholes[made, node] = ast.copy_location(ast.Call(node.func, arguments, keywords), node)
            held = made.args[0].value if made.args and isinstance(made.args[0], ast.Attribute) else None
            earlier = [self._seen(item) for item in made.args[1:]]
            named = {item.arg: self._seen(item.value) for item in made.keywords}
            receiver = self._seen(held) if held is not None else given.receiver
            given = Arguments(whole, receiver, [*earlier, *given.values], {**named, **given.keywords})
            target = target.ref
        return given

    def _seen(self, node: ast.expr) -> RankValue:
        return self._world.seen.get(node, REPLICATED)

    def _receiver(self, node: ast.Call, frame: Frame) -> RankValue:
        """The object whose method is called, or what is called itself."""
        if not isinstance(node.func, ast.Attribute):
            return self._world.evaluate(node.func, frame)
        owner = node.func.value
        if is_super(owner):
            return self._self(frame)
        if node.func.attr in self._held_methods(owner, frame):
            # A method or a module that an attribute holds: ``self.criterion(output)``.
            return self._world.evaluate(node.func, frame)
        return self._world.evaluate(owner, frame)

    def _held_methods(self, owner: ast.expr, frame: Frame) -> set[str]:
        """Attributes of an object that hold what can be called."""
        found: set[str] = set()
        for value in self._world.flow.values(owner, frame.scope):
            if value.kind == "instance":
                found |= self._world.flow.attribute_names.get(value.ref.facts.node, set())
        return found

    def _self(self, frame: Frame) -> RankValue:
        info = self._world.flow.functions.get(frame.node)
        name = info.receiver if info is not None else None
        return frame.variables.get(name, REPLICATED) if name is not None else REPLICATED

    def _argument(self, item: ast.expr, frame: Frame) -> RankValue:
        value = self._world.evaluate(item, frame)
        return self._elements.of(value, item, frame) if isinstance(item, ast.Starred) else value

    def _switch_mode(self, node: ast.Call, given: Arguments, frame: Frame) -> None:
        """``model.eval()`` and ``model.train(mode)``: whether dropout draws from here on."""
        if not (isinstance(node.func, ast.Attribute) and node.func.attr in ("train", "eval")):
            return
        if len(node.args) + len(node.keywords) > 1:
            return
        if not self._world.program.roles.modules(node.func.value, frame.scope):
            return
        mode = (
            given.values[0].constant if given.values else given.keywords.get("mode", RankValue(constant=True)).constant
        )
        frame.state.training = node.func.attr == "train" and mode is not False

    # ---- of the project ------------------------------------------------------------------------------------------

    def _construct(self, target: Value, given: Arguments, frame: Frame) -> RankValue:
        info = target.ref
        ref = self._memory.made(Ref(given.node, frame.context, info))
        initializer = info.find_method("__init__")
        if initializer is not None:
            self._world.run(
                Given(initializer, self._bound(initializer, given, frame), frame, frozenset((ref,)), given.node)
            )
        else:
            self._fill(ref, given)
        return RankValue(refs=frozenset((ref,)))

    def _fill(self, ref: Ref, given: Arguments) -> None:
        """Records and containers take what they are given."""
        assert ref.cls is not None
        fields = [
            item for info in ref.cls.mro()[::-1] for item in info.facts.node.body if isinstance(item, ast.AnnAssign)
        ]
        names = [item.target.id for item in fields if isinstance(item.target, ast.Name)]
        for name, value in [*zip(names, given.values, strict=False), *given.keywords.items()]:
            if name is not None:
                self._memory.write(ref, attribute(name), value)
                if name in names:
                    self._memory.write(ref, element(names.index(name)), value)
        if CONTAINERS & ref.cls.external_bases():
            for value in given.values:
                self._elements.copy(ref, value)

    def _run(self, info: FunctionFacts, given: Arguments, targets: set[Value], frame: Frame) -> RankValue:
        refs: frozenset[Ref] = frozenset()
        if info.receiver is not None and info.cls is not None:
            refs = frozenset(ref for ref in given.receiver.refs if ref.cls is not None and _has(ref, info))
            refs = refs or self._known_receivers(info, targets)
        found = self._world.run(Given(info, self._bound(info, given, frame), frame, refs, given.node))
        for name in self._made_alike.get(info.node, ()):
            argument = info.argument(given.node, name)
            if argument is not None:
                make_alike(argument, frame)
        return found

    @cached_property
    def _made_alike(self) -> dict[ast.AST, set[str]]:
        """The parameters whose tensors functions exchange in place: ``def sync(t): dist.all_reduce(t)``."""
        program = self._world.program
        found: defaultdict[ast.AST, set[str]] = defaultdict(set)
        for site in program.calls_to(MADE_ALIKE):
            assert isinstance(site.node, ast.Call)
            for name in program.callee_names(site.node, site.scope) & MADE_ALIKE:
                found[site.body].update(item.id for item in exchanged(site.node, name) if isinstance(item, ast.Name))
        for body, names in found.items():
            info = program.function_of(body)
            names &= set(info.parameters) if info is not None else set()
            names -= {path for node in program.nodes_of(body) for path in blocks.writes_itself(node)}
        return found

    def _known_receivers(self, info: FunctionFacts, targets: set[Value]) -> frozenset[Ref]:
        """The objects that a method may be called of, where values were lost on the way to the call."""
        found: set[Ref] = set()
        for target in targets:
            owner = target.receiver if target.receiver is not None else target
            if owner.kind == "instance" and owner.site is not None:
                found |= self._made_with(owner.site, info)
        return frozenset(found)

    def _made_with(self, site: ast.AST, info: FunctionFacts) -> frozenset[Ref]:
        """The objects made at a place that have a method; those are only ever more."""
        made = self._memory.made_at(site)
        asked, found = self._having.get((site, info.cls), (frozenset[Ref](), frozenset[Ref]()))
        if len(asked) != len(made):
            found |= {ref for ref in made - asked if _has(ref, info)}
            self._having[site, info.cls] = frozenset(made), found
        return found

    def _bound(self, info: FunctionFacts, given: Arguments, frame: Frame) -> dict[str, RankValue]:
        """What each parameter gets."""
        bound: dict[str, RankValue] = {}
        places = list(info.positional)
        rest = info.node.args.vararg
        spread = False
        position = 0
        for item, value in zip(given.node.args, given.values, strict=False):
            if isinstance(item, ast.Starred):
                spread = True
                for name in places[position:]:
                    bound[name] = join_all([bound[name], value]) if name in bound else value
                if rest is not None:
                    self._gather(bound, rest, value, self._rest(rest, given.node, frame))
            elif position < len(places):
                name = places[position]
                bound[name] = join_all([bound[name], value]) if spread and name in bound else value
                position += 1
            elif rest is not None:
                self._gather(bound, rest, value, self._rest(rest, given.node, frame))
                position += 1
        self._bind_keywords(info, given, bound, frame)
        return bound

    def _bind_keywords(self, info: FunctionFacts, given: Arguments, bound: dict[str, RankValue], frame: Frame) -> None:
        more = info.node.args.kwarg
        for keyword, value in given.keywords.items():
            if keyword is None:
                taken = [name for name in info.parameters if name not in bound and name != info.receiver]
                if more is not None and taken == [more.arg] and len(given.node.keywords) == 1:
                    # All of it, in its order. What the function does to its copy is taken for what is done to it.
                    bound[more.arg] = value.unknown()
                    continue
                for name in taken:
                    if name not in info.defaults or not self._lacks(value, name):
                        bound[name] = self._elements.at(value, name, given.node, frame).unknown()
            elif keyword in info.parameters:
                bound[keyword] = value
            elif more is not None:
                ref = self._rest(more, given.node, frame)
                self._memory.write(ref, element(keyword), value.unknown())
                bound[more.arg] = RankValue(refs=frozenset((ref,)))

    def _lacks(self, value: RankValue, key: str) -> bool:
        """Whether a dictionary, all of whose keys are seen, has none of this name: the default of a parameter holds."""
        return (
            bool(value.refs)
            and not value.content
            and all(
                has_known_keys(ref)
                and self._memory.read(ref, element(key)) is None
                and self._memory.read(ref, ELEMENTS) is None
                and self._memory.read(ref, REST) is None
                for ref in value.refs
            )
        )

    def _gather(self, bound: dict[str, RankValue], rest: ast.arg, value: RankValue, ref: Ref) -> None:
        self._memory.write(ref, ELEMENTS, value.unknown())
        if value.size:
            self._memory.write(ref, LENGTH, RankValue(value.size))
        bound[rest.arg] = RankValue(refs=frozenset((ref,)))

    def _rest(self, parameter: ast.arg, call: ast.Call, frame: Frame) -> Ref:
        """What ``*args`` or ``**options`` of one call hold, which other calls of the function do not change."""
        site = self._rests.setdefault((parameter, call), ast.copy_location(ast.arg(parameter.arg), parameter))
        return self._memory.made(Ref(site, frame.context))


def _place(value: Value) -> tuple[int, int]:
    return getattr(value.site, "lineno", 0), getattr(value.site, "col_offset", 0)


def _takes(info: FunctionFacts, call: ast.Call) -> bool:
    """Whether a call gives a function all that it needs: what needs more is not what is called there."""
    if getattr(info.node, "decorator_list", ()):
        return True
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return True
    given = {*info.positional[: len(call.args)], *(item.arg for item in call.keywords)}
    return given >= set(info.positional) - info.defaults.keys()


def _has(ref: Ref, info: FunctionFacts) -> bool:
    """Whether an object has a method."""
    return ref.cls is not None and any(base.facts is info.cls for base in ref.cls.mro())
