"""What hydra makes: the configuration of a script, and the objects whose classes it names.

``hydra.utils.instantiate(cfg.model, width=8)`` is the call of what ``_target_`` names, with what the configuration
holds besides, in which what has a ``_target_`` is made first. Where a place of the configuration can name several, as
one file of a folder is chosen on the command line, all of them are called.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from amp_rules.flow.attributes import Attributes
from amp_rules.flow.call_graph import CallGraph
from amp_rules.flow.cells import attribute_key
from amp_rules.flow.partials import Partials, stand_beside
from amp_rules.flow.parts import Evaluation, Invocation
from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import Form, Value
from amp_rules.source.hydra_settings import SUFFIXES, Setting, compose
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.search_path import path_of
from amp_rules.torch.containers import COMPOSES, INSTANTIATES, LOCATES, SETS_FOLDER

_TARGET, _PARTIAL = "_target_", "_partial_"
_OF_HYDRA = frozenset({_TARGET, _PARTIAL, "_args_", "_recursive_", "_convert_"})
_FOLDER = ("config_path", "config_dir")
_MAX_DEPTH = 12
"""Objects that are made for objects; a configuration can refer to itself."""


class Configurations:
    """Values of configurations, and the calls that they stand for."""

    def __init__(
        self,
        store: Store,
        reached: Reached,
        graph: CallGraph,
        attributes: Attributes,
        partials: Partials,
        evaluation: Evaluation,
    ) -> None:
        self._store = store
        self._reached = reached
        self._graph = graph
        self._attributes = attributes
        self._partials = partials
        self._evaluation = evaluation
        self._composed: dict[tuple[Path, str], Setting | None] = {}
        self._settings: dict[ast.AST | None, Setting] = {}
        self._calls: dict[tuple[Setting, ast.Call], ast.Call] = {}

    # ---- what a script is given ----------------------------------------------------------------------------------

    def give(self, decorator: ast.Call, decorated: set[Value], scope: Scope) -> None:
        """``@hydra.main(config_path="conf", config_name="train")``: give the function its configuration."""
        given = {item.arg: item.value for item in decorator.keywords}
        given |= dict(zip(("config_path", "config_name"), decorator.args, strict=False))
        paths = {key: path_of(scope.module, value) for key, value in given.items()}
        path, name = paths.get("config_path", Path()), paths.get("config_name")
        if "config_name" not in given and path is not None and path.suffix in SUFFIXES:
            # As hydra before 1.0 had it.
            path, name = path.parent, Path(path.name)
        if name is None or path is None or None in given:
            return
        root = self._root(scope.module.path.parent / path, str(name))
        if root is None:
            return
        for value in decorated:
            if value.kind == "function" and value.ref.parameters:
                self._store.write((value.ref.node, value.ref.parameters[0]), _held(root))

    def _composed_by(self, call: ast.Call, scope: Scope) -> set[Value] | None:
        """``with initialize(config_path="conf"): cfg = compose(config_name="train")``."""
        name = _argument(call, "config_name")
        folder = _folder_for(call, scope)
        if name is None or folder is None or any(item.arg is None for item in call.keywords):
            return None
        path, called = path_of(scope.module, folder), path_of(scope.module, name)
        root = self._root(scope.module.path.parent / path, str(called)) if path is not None and called else None
        return _held(root) if root is not None else None

    def _root(self, folder: Path, name: str) -> Setting | None:
        folder = Path(os.path.normpath(folder))
        if (folder, name) not in self._composed:
            root = self._composed[folder, name] = compose(self._reached.project, folder, name)
            for place in root.places() if root is not None else ():
                self._settings[place.site] = place
                value = Value("sequence", Form.COMPOSED, place.site)
                for key, item in [*place.members.items(), *enumerate(place.items)]:
                    self._store.write_element(value, key, _held(item))
        return self._composed[folder, name]

    # ---- what is made of it --------------------------------------------------------------------------------------

    def apply(self, name: str, given: Invocation) -> set[Value] | None:
        """What a function of hydra gives that makes or finds what a configuration names; None where it is not known."""
        if name in COMPOSES:
            return self._composed_by(given.node, given.scope)
        values = given.first or given.keywords.get("config", set())
        if name in LOCATES:
            texts = {value.ref for value in values if value.kind == "constant"}
            return self._located(texts, given.scope) if texts and len(texts) == len(values) else None
        places = [self._settings[value.site] for value in values if value.ref is Form.COMPOSED]
        if name not in INSTANTIATES or not places:
            return None
        return set().union(*(self._outermost(place, given) for place in places)) or None

    def _outermost(self, place: Setting, given: Invocation) -> set[Value]:
        """What the call of the program makes; it stands for the call of what the place names."""
        if _TARGET not in place.members:
            return self._inner(place, given, 0)
        whole = self._whole_call(place, given)
        keywords = self._keywords(place, given, 0)
        keywords |= {name: values for name, values in given.keywords.items() if name not in (None, "config")}
        made = self._called(
            place,
            replace(
                given,
                node=whole,
                arguments=given.arguments[1:],
                keywords=keywords,
            ),
        )
        self._graph.take_over(given.node, whole)
        # What is made by the call is told apart by where the call stands.
        return {value.at(given.node) if value.site is whole else value for value in made}

    def _inner(self, place: Setting, given: Invocation, depth: int) -> set[Value]:
        """What a place becomes within what is made; the calls stand in no file."""
        found = {Value("constant", text) for text in place.texts}
        if depth > _MAX_DEPTH or not (place.members or place.items):
            return found
        call = self._calls.setdefault((place, given.node), ast.Call(ast.Name(_TARGET), [], []))
        if _TARGET in place.members:
            keywords = self._keywords(place, given, depth)
            return found | self._called(place, replace(given, node=call, arguments=[], keywords=keywords))
        made = Value("sequence", Form.COMPOSED, call)
        for key, item in [*place.members.items(), *enumerate(place.items)]:
            self._store.write_element(made, key, self._inner(item, given, depth + 1))
        return found | {made}

    def _keywords(self, place: Setting, given: Invocation, depth: int) -> dict[str | None, set[Value]]:
        """What a place holds as arguments, with what the program puts there: ``cfg.optimizer.params = parameters``."""
        owner = Value("sequence", Form.COMPOSED, place.site)
        return {
            name: self._inner(item, given, depth + 1) | self._store.read(attribute_key(owner, name))
            for name, item in place.members.items()
            if name not in _OF_HYDRA
        }

    def _called(self, place: Setting, given: Invocation) -> set[Value]:
        """What calling what a place names gives, or the partial function where it is to be called later."""
        targets = self._located(set(place.members[_TARGET].texts), given.scope)
        if _PARTIAL not in place.flags:
            return set().union(*(self._evaluation.calls.apply(target, given) for target in targets))
        node = given.node
        bound = self._calls.setdefault((place, node), ast.Call(node.func, [node.func, *node.args], node.keywords))
        return set().union(
            *(
                self._partials.make(replace(given, node=bound, arguments=[{target}, *given.arguments]))
                for target in targets
            )
        )

    def _whole_call(self, place: Setting, given: Invocation) -> ast.Call:
        """The plain call with all arguments; those of the configuration stand there as strangers."""
        node = given.node
        whole = self._calls.get((place, node))
        if whole is None:
            named = {item.arg for item in node.keywords}
            bound = [
                ast.keyword(name, ast.copy_location(ast.Name("<bound>", ast.Load()), node))
                for name in place.members
                if name not in _OF_HYDRA and name not in named
            ]
            rest = [item for item in node.keywords if item.arg not in (None, "config")]
            whole = ast.copy_location(ast.Call(node.func, node.args[1:], [*rest, *bound]), node)
            stand_beside(whole, node, given.scope)
            self._calls[place, node] = whole
        return whole

    def _located(self, texts: set[str], scope: Scope) -> set[Value]:
        """What dotted paths name: of the project what it defines, or a name of a library."""
        found: set[Value] = set()
        for text in sorted(texts):
            parts = text.split(".")
            if len(parts) > 1 and all(part.isidentifier() for part in parts):
                held = self._reached.imported_module(scope.module, parts[0])
                for length in range(2, len(parts)):
                    self._reached.module(scope.module, ".".join(parts[:length]))
                for part in parts[1:]:
                    held = set().union(*(self._attributes.of(value, part) for value in held))
                found |= held
        return found


def _held(place: Setting) -> set[Value]:
    found = {Value("constant", text) for text in place.texts}
    return found | {Value("sequence", Form.COMPOSED, place.site)} if place.members or place.items else found


def _argument(call: ast.Call, *names: str) -> ast.expr | None:
    """What a call is given by one of the names, or first."""
    return next((item.value for item in call.keywords if item.arg in names), call.args[0] if call.args else None)


def _folder_for(call: ast.Call, scope: Scope) -> ast.expr | None:
    """The folder that is chosen around a call, or else the one that its file chooses; None where there are several."""
    names = names_of(scope.module)

    def chosen(nodes: Iterable[ast.AST]) -> list[ast.expr | None]:
        calls = [node for node in nodes if isinstance(node, ast.Call) and names.dotted(node.func) in SETS_FOLDER]
        return [_argument(one, *_FOLDER) for one in calls]

    for parent in scope.module.ancestors(call) if call in scope.module.parents else ():
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            around = chosen(item.context_expr for item in parent.items)
            if around:
                return around[0]
    found = chosen(scope.module.nodes)
    return found[0] if len(found) == 1 else None
