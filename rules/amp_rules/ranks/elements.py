"""What iterating over a value gives, and what stands in it under a key."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.flow.values import Value
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.memory import ELEMENTS, LENGTH, REST, STATE, element, has_known_keys, is_mapping, nothing
from amp_rules.ranks.origins import NOWHERE, Kind, Origins, of_shapes
from amp_rules.ranks.values import REPLICATED, SHARED, UNKNOWN, RankValue, Ref, join_all
from amp_rules.ranks.world import Given, World
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.source import blocks
from amp_rules.source.syntax import called_name, is_none, walk
from amp_rules.torch.containers import CONFIG_LOADERS
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS, LOADER_PREFIXES
from amp_rules.torch.file_access import LOADERS
from amp_rules.torch.optimizers import SETTINGS_OF_GROUPS

_SAMPLING: frozenset[object] = frozenset({"collate_fn", "batch_sampler", "sampler", None})
"""Arguments of a loader that leave less to torch; None where not all are known."""
_OWN_SAMPLING = _SAMPLING - {"collate_fn", None}
"""Those that choose the samples of a batch, and so how many they are."""
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)

_READ_FROM_FILES = LOADERS | CONFIG_LOADERS
"""Calls that give what a file holds."""
_MAX_LEVELS = 3
"""Names within names of a file that are told apart: ``saved["trainer"]["step"]``."""


class Elements:
    """Questions about containers, loaders and whatever else can be iterated."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._memory = world.memory
        self._levels: dict[ast.AST, int] = {}
        self._loaders: dict[ast.AST, bool] = {}
        self._named: dict[tuple[ast.AST, str], ast.AST] = {}
        self._samples: dict[ast.AST, ast.List] = {}

    def of(self, value: RankValue, node: ast.expr, frame: Frame, *, keys: bool = True) -> RankValue:
        """What iterating over a value gives; of a dictionary its keys, or what stands under them."""
        found: list[RankValue] = []
        alias: set[Ref] = set()
        state: Origins = NOWHERE
        for ref in value.refs:
            if keys and has_known_keys(ref):
                found.append(RankValue(self._memory.members(RankValue(refs=frozenset((ref,))))))
                continue
            held = self._memory.elements(ref)
            if held is not None:
                found.append(held.unknown())
            elif ref.cls is not None:
                found.extend(self._of_object(ref, node, frame))
            # What was written to one part of a library's object is not all that its parts are.
            if ref.view or (held is None and ref.cls is None and not self.is_loader(ref)):
                alias.add(ref.part)
                state = state | nothing(self._memory.read(ref, STATE)).own
        if not self._memory.is_pass(value):
            found.extend(self._reshuffled(node, frame))
        joined = join_all(found)
        return RankValue(joined.content | value.content | state, joined.size | value.size, joined.refs | alias)

    def is_loader(self, ref: Ref) -> bool:
        """Whether an object gives batches, which are no parts of it."""
        known = self._loaders.get(ref.site)
        if known is None:
            located = self._world.program.locate(ref.site) if isinstance(ref.site, ast.Call) else None
            values = self._world.flow.values(ref.site, located[1]) if located and isinstance(ref.site, ast.Call) else ()
            known = self._loaders[ref.site] = any(map(is_loader_value, values))
        return known

    def _of_object(self, ref: Ref, node: ast.expr, frame: Frame) -> list[RankValue]:
        """What iterating over an object of the project gives."""
        assert ref.cls is not None
        for name in ("__iter__", "__next__", "__getitem__"):
            method = ref.cls.find_method(name)
            if method is None:
                continue
            given = self._world.run(Given(method, {}, frame, frozenset((ref,))))
            if name == "__iter__" and ref not in given.refs:
                return [self.of(given, node, frame), RankValue(NOWHERE, self._memory.length(given))]
            if name != "__iter__":
                return [given]
        return []

    def _reshuffled(self, node: ast.expr, frame: Frame) -> list[RankValue]:
        """Batches of a loader that each rank has whole, but in an order of its own, or of samples that it draws."""
        if not frame.state.apart:
            return []
        for value in self._world.flow.values(node, frame.scope):
            call = value.site
            if value.kind == "object" and isinstance(call, ast.Call) and value.ref.startswith(LOADER_PREFIXES):
                if self._draws(call, frame) or any(
                    item.arg in ("shuffle", "sampler")
                    and not (isinstance(item.value, ast.Constant) and item.value.value in (False, None))
                    and not self._keeps_order(item.value, call)
                    for item in call.keywords
                ):
                    return [RankValue(self._world.origin(Kind.DRAW, frame.scope.module, node))]
        return []

    def _draws(self, loader: ast.Call, frame: Frame) -> bool:
        """Whether random numbers are in the samples of a loader: its data set gives them, or what collates them."""
        given = [given_to_loader(loader, name) for name in ("dataset", "collate_fn")]
        for item, name in zip(given, ("__getitem__", "__call__"), strict=True):
            for value in self._given(loader, item) if item is not None else ():
                is_function = value.kind == "function" and name == "__call__"
                method = value.ref.find_method(name) if value.kind == "instance" else None
                info = value.ref if is_function else method
                refs = self._world.seen.get(item, REPLICATED).refs if item is not None else frozenset[Ref]()
                own = frozenset(ref for ref in refs if value.kind == "instance" and ref.cls == value.ref)
                if info is not None and (is_function or own):
                    made = self._world.run(Given(info, {}, frame, own))
                    if any(origin.kind is Kind.DRAW for origin in self._memory.deep(made)):
                        return True
        return False

    def _given(self, loader: ast.Call, argument: ast.expr) -> set[Value]:
        """What an argument of a loader's constructor may be."""
        located = self._world.program.locate(loader)
        return self._world.flow.values(argument, located[1]) if located is not None else set()

    def _keeps_order(self, sampler: ast.expr, call: ast.Call) -> bool:
        """Whether a loader is given a sampler that goes through the data in its order."""
        values = self._given(call, sampler)
        return bool(values) and all(value.name.endswith(".SequentialSampler") for value in values)

    def at(self, owner: RankValue, key: object, node: ast.AST, frame: Frame) -> RankValue:
        """What stands under a key; under any, where it is not known."""
        if key in SETTINGS_OF_GROUPS and isinstance(node, ast.Subscript) and is_group(node.value, frame):
            # Weights that differ, and what steps keep of gradients, do not change what the group was told.
            return join_all([held for ref in owner.refs if (held := self._held(ref, key)) is not None])
        found: list[RankValue] = []
        alias: set[Ref] = set()
        state: Origins = NOWHERE
        for ref in owner.refs:
            state = state | nothing(self._memory.read(ref, STATE)).own
            held = self._held(ref, key)
            if held is not None:
                found.append(held)
                if ref.view and key is UNKNOWN:
                    alias.add(ref.part)
            elif ref.cls is not None:
                method = ref.cls.find_method("__getitem__")
                if method is not None:
                    given = RankValue(constant=key)
                    bound = {name: given for name in method.positional[:1]}
                    found.append(self._world.run(Given(method, bound, frame, frozenset((ref,)))))
            else:
                alias.add(self._of_file(ref, key) or ref.part)
        joined = join_all(found)
        return RankValue(
            joined.content | owner.content | state,
            joined.size | owner.size,
            joined.refs | alias,
            joined.constant if not alias and not owner.content and len(found) == 1 else UNKNOWN,
            joined.rows if not alias and not owner.size else None,
        )

    def _of_file(self, ref: Ref, key: object) -> Ref | None:
        """What stands under a name in a file that was read: an object of its own, which others do not change with."""
        level = self._levels.get(ref.site, 0)
        if ref.view or not isinstance(key, str) or level >= _MAX_LEVELS or not (level or self._is_read(ref.site)):
            return None
        site = self._named.setdefault((ref.site, key), ast.copy_location(ast.Constant(key), ref.site))
        self._levels[site] = level + 1
        part = self._memory.made(Ref(site, ref.context))
        self._memory.write(ref, element(key), RankValue(refs=frozenset((part,))))
        return part

    def is_of_file(self, ref: Ref) -> bool:
        """Whether an object stands under a name in a file that was read."""
        return ref.site in self._levels

    def _is_read(self, site: ast.AST) -> bool:
        located = self._world.program.locate(site) if isinstance(site, ast.Call) else None
        if located is None or not isinstance(site, ast.Call):
            return False
        return bool(self._world.program.callee_names(site, located[1]) & _READ_FROM_FILES)

    def _held(self, ref: Ref, key: object) -> RankValue | None:
        if key is UNKNOWN or (isinstance(key, int) and key < 0):
            held = self._memory.elements(ref)
            return held.unknown() if held is not None else None
        exact = self._memory.read(ref, element(key))
        other = self._memory.read(ref, ELEMENTS)
        if exact is None:
            rest = self._memory.read(ref, REST)
            return other if rest is None else rest if other is None else join_all([rest, other])
        return exact if other is None else join_all([exact, other])

    def truth(self, node: ast.expr, value: RankValue, frame: Frame) -> Origins:
        """Why the value of a test may be true on one rank and false on another."""
        found = self._truth(value, frame)
        self._world.truths[node] = self._world.truths.get(node, NOWHERE) | found
        return found

    def _truth(self, value: RankValue, frame: Frame) -> Origins:
        found = value.own
        for ref in value.refs:
            if ref.cls is not None:
                method = ref.cls.find_method("__bool__") or ref.cls.find_method("__len__")
                if method is not None:
                    said = self._world.run(Given(method, {}, frame, frozenset((ref,))))
                    found = found | self._memory.deep(said)
            elif ref.context == SHARED:
                continue  # a loader is true if it has batches, and all processes have as many
            elif isinstance(ref.site, _DISPLAYS):
                # A list is true if something stands in it, whatever that is.
                found = found | nothing(self._memory.read(ref, LENGTH)).own
            elif not ref.view and self._is_read(ref.site):
                # So is what was read from a file; a list under one of its names may have grown.
                for slot in (LENGTH, ELEMENTS, STATE):
                    found = found | nothing(self._memory.read(ref, slot)).own
            else:
                found = found | self._memory.deep(RankValue(refs=frozenset((ref,))))
        return found

    def copy(self, ref: Ref, value: RankValue) -> None:
        """Put the elements of a container into another; of a dictionary each under its key."""
        for other in value.refs:
            if _keeps_keys(ref) and (_keeps_keys(other) or self._is_read(other.site)):
                self._merge(ref, other)
            else:
                held = self._memory.elements(other)
                if held is not None:
                    self._memory.write(ref, ELEMENTS, held.unknown())
            length = self._memory.read(other, LENGTH)
            if length is not None:
                self._memory.write(ref, LENGTH, length)
        if value.own:
            self._memory.write(ref, ELEMENTS, RankValue(value.own))

    def _merge(self, ref: Ref, other: Ref) -> None:
        """Put what a dictionary, or a file that was read, has under its keys under the same keys of another."""
        for key in self._memory.keys(other):
            held = self._memory.read(other, element(key))
            if held is not None:
                self._memory.write(ref, element(key), held.unknown())
        rest = self._memory.read(other, REST)
        if not has_known_keys(other):
            # What the file has besides is a part of that, and not of all that the dictionary gets.
            rest = RankValue(refs=frozenset((other.part,)))
        if rest is not None:
            self._memory.write(ref, REST, rest)

    def shared(self, node: ast.expr, value: RankValue, frame: Frame) -> RankValue:
        """A loader that is shared out: its batches differ between ranks, its length does not."""
        origin = self._world.origin(Kind.BATCH, frame.scope.module, node)
        ref = self._memory.made(Ref(node, SHARED))
        sizes = NOWHERE if self._has_equal_batches(node, frame) else of_shapes(origin)
        calls = [value.site for value in self._world.flow.values(node, frame.scope)]
        self._memory.write(ref, ELEMENTS, self._batch(calls, origin, sizes, frame))
        # What is done to its batches is done to no other part of what it comes of: ``train, test = make_loaders()``.
        others = frozenset[Ref]() if node in self._world.setting.unknown else value.refs
        return RankValue(value.content, value.size, others | {ref})

    def rebound(self, statement: ast.stmt, variable: str, value: RankValue, frame: Frame) -> RankValue:
        """A variable's loader, shared out before a statement."""
        ref = self._memory.made(Ref(statement, SHARED))
        origin = self._world.origin(Kind.BATCH, frame.scope.module, statement, variable)
        calls = [other.site for other in value.refs]
        self._memory.write(ref, ELEMENTS, self._batch(calls, origin, self._sizes(value, origin), frame))
        return RankValue(value.content, value.size, value.refs | {ref})

    def _batch(self, sites: Sequence[ast.AST | None], origin: Origins, sizes: Origins, frame: Frame) -> RankValue:
        """A batch; a function of the project that collates it says how long it is, and how many rows its parts have."""
        loader = sites[0] if sizes and len(sites) == 1 else None
        made = self._collated(loader, origin, frame) if isinstance(loader, ast.Call) else None
        if made is None or not isinstance(loader, ast.Call):
            return RankValue(origin, sizes)
        if not (made.refs and all(map(is_container, made.refs))):
            return RankValue(origin, sizes, rows=made.rows)
        batch = self._memory.made(
            Ref(next(item for item in loader.keywords if item.arg == "collate_fn"), frame.context)
        )
        keys = set[object]().union(*map(self._memory.keys, made.refs))
        for key in keys - {None}:
            part = self.at(made, key, loader, frame)
            is_list = bool(part.refs) and all(map(is_container, part.refs))
            rows = self._memory.length(part) | part.content if is_list else part.rows
            self._memory.write(batch, element(key), RankValue(origin, sizes, rows=rows))
        if None in keys or not keys:
            self._memory.write(batch, ELEMENTS, RankValue(origin, sizes))
        return RankValue(origin, self._memory.length(made) | made.content, frozenset((batch,)))

    def _collated(self, loader: ast.Call, origin: Origins, frame: Frame) -> RankValue | None:
        """What a loader's ``collate_fn`` makes of as many samples on all ranks; None where that is not known."""
        given = {item.arg: item.value for item in loader.keywords}
        located = self._world.program.locate(loader)
        if located is None or None in given or "collate_fn" not in given or given.keys() & _OWN_SAMPLING:
            return None
        values = self._world.flow.values(given["collate_fn"], located[1])
        infos = [value.ref for value in values if value.kind == "function" and value.receiver is None]
        if len(infos) != 1 or len(values) != 1 or len(infos[0].positional) != 1:
            return None
        listed = self._samples.setdefault(loader, ast.copy_location(ast.List([], ast.Load()), loader))
        samples = self._memory.made(Ref(listed, frame.context))
        self._memory.write(samples, ELEMENTS, RankValue(origin, origin))
        size = given.get("batch_size")
        if not (self._pads(loader) and not is_none(size)):
            # The last batch of one rank can have fewer samples than that of another.
            self._memory.write(samples, LENGTH, RankValue(origin))
        bound = {infos[0].positional[0]: RankValue(refs=frozenset((samples,)))}
        apart, frame.state.apart = frame.state.apart, True
        made = self._world.run(Given(infos[0], bound, frame))
        frame.state.apart = apart
        return made

    def _pads(self, loader: ast.Call) -> bool:
        """Whether this is a loader of torch, of whose samples each rank gets as many as the others."""
        located = self._world.program.locate(loader)
        values = self._world.flow.values(loader, located[1]) if located is not None else set()
        return bool(values) and all(map(is_loader_value, values))

    def _sizes(self, value: RankValue, origin: Origins) -> Origins:
        """Why the shapes of a loader's batches differ: because some object that it may be was told how to collate.

        Or is no loader: its batches are shared out as they are, and one of them may be the last, which is smaller.
        """
        made = [(ref, ref.site) for ref in value.refs if isinstance(ref.site, ast.Call)]
        is_plain = bool(made) and all(self.is_loader(ref) and self._is_plain(site) for ref, site in made)
        return NOWHERE if is_plain else of_shapes(origin)

    def _has_equal_batches(self, node: ast.expr, frame: Frame) -> bool:
        """Whether the batches of one step have one shape on all ranks: torch's own sampling and collating."""
        values = self._world.flow.values(node, frame.scope)
        for value in values:
            call = value.site
            if (
                value.kind != "object"
                or not isinstance(call, ast.Call)
                or not value.ref.startswith("torch.utils.data.")
            ):
                return False
            if not self._is_plain(call):
                return False
        return bool(values)

    def _is_plain(self, call: ast.Call) -> bool:
        """Whether a loader's constructor leaves sampling and collating to torch."""
        for item in call.keywords:
            if item.arg is None:
                refs = self._world.seen.get(item.value, REPLICATED).refs
                self._memory.record.is_partial = True
                keys = set[object]().union(*map(self._memory.keys, refs))
                if not refs or keys & _SAMPLING:
                    return False
            elif item.arg in _SAMPLING and not is_none(item.value):
                if not (item.arg == "sampler" and self._is_of_equal_shares(item.value, call)):
                    return False
        return True

    def _is_of_equal_shares(self, sampler: ast.expr, loader: ast.Call) -> bool:
        """Whether a loader's sampler is torch's for several processes, which gives each as many samples, or none."""
        values = self._given(loader, sampler)
        given = [value for value in values if not (value.kind == "constant" and value.ref is None)]
        return bool(given) and all(value.kind == "object" and value.ref in DISTRIBUTED_SAMPLERS for value in given)


def is_container(ref: Ref) -> bool:
    """Whether an object is a list, a tuple or a dictionary; also one that unpacking makes, ``*rest``."""
    site = ref.site
    is_made = isinstance(site, ast.Call) and called_name(site) in ("list", "tuple", "dict")
    return not ref.view and (is_made or isinstance(site, (*_DISPLAYS, ast.Tuple, ast.Starred)))


def _keeps_keys(ref: Ref) -> bool:
    """Whether an object itself, and not a part of it, is a dictionary."""
    return not ref.view and is_mapping(ref.site)


def is_group(node: ast.expr, frame: Frame) -> bool:
    """Whether an expression is a parameter group of an optimizer, by what torch calls the list of them."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "param_groups"
    return isinstance(node, ast.Name) and any(
        isinstance(part, ast.Attribute) and part.attr == "param_groups"
        for other in blocks.walk_body(frame.scope.owner(node.id).node)
        if isinstance(other, ast.For) and any(name == node.id for name in blocks.writes_target(other))
        for part in walk(other.iter)
    )
