"""Which constructors make the loaders of training data, and what their arguments say."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plain_torch.evaluation_order import is_first, is_within, runs_once_in
from amp_rules.plain_torch.loader_arguments import arguments_of, is_plain, name_for
from amp_rules.plain_torch.loaders_beside import LoadersBeside
from amp_rules.plain_torch.loops import loops_around
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.roles.kinds import is_loader_value, is_stream
from amp_rules.roles.loader_arguments import BY_PLACE
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import is_variable, names_of
from amp_rules.source.syntax import is_none
from amp_rules.torch.data import LOADERS_OF_TORCH


@dataclass(frozen=True)
class Made:
    """A ``DataLoader(...)`` that gets a sampler.

    Attributes:
        module: its file.
        body: the function that makes it, or the file.
        call: the constructor.
        wrapper: the call of the runtime around it.
        statement: the statement that it stands in, above which the sampler is made.
        dataset: what it is given.
        shuffle: the source of whether it shuffles.
        sampler: the variable of the sampler.
        hoisted: a variable for the dataset, where that is made within the call.
    """

    module: Module
    body: ast.AST
    call: ast.Call
    wrapper: ast.Call | None
    statement: ast.stmt
    dataset: ast.expr
    shuffle: str
    sampler: str
    hoisted: str | None


class SharedLoaders:
    """What becomes of each ``amp.prepare_loader(...)``.

    Attributes:
        decided: the constructors that get a sampler in its place; none where a copy of the loader is made.
        reasons: why nothing can be made of it.
        values: the loaders that are shared out.
        values_beside: loaders that stay whole, with one that is shared out beside them.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        self._written: set[ast.AST] = set()
        self._beside: set[Use] = set()
        self._names: dict[tuple[Module, str], tuple[ast.AST, str]] = {}
        self.decided: dict[Use, tuple[Made, ...]] = {}
        self.reasons: dict[Use, str] = {}
        self.values: set[Value] = set()
        self.values_beside: set[Value] = set()
        self.made: dict[ast.AST, Made] = {}
        self.beside = LoadersBeside(translation)
        for use in translation.uses_of("prepare_loader"):
            self._decide(use)

    def is_edited(self, node: ast.AST) -> bool:
        """Whether a constructor gets a sampler in place of the call around it."""
        return node in self.made and self.made[node].wrapper is not None

    def is_one_of_several(self, value: Value) -> bool:
        """Whether one constructor makes several loaders, which may not all be shared out."""
        if value.site in self.made:
            return False
        module = self._program.module_of(value.site) if value.site is not None else None
        if module is None or value.site is None:
            return True
        around = [*module.ancestors(value.site)]
        if any(isinstance(item, (ast.DictComp, ast.ListComp, *blocks.LOOPS)) for item in around):
            return True
        info = self._program.function_of(blocks.body_of(module, value.site))
        return info is not None and len(self._program.flow.callers(info)) > 1

    def is_beside(self, use: Use) -> bool:
        """Whether another loader stands beside the one that a use is given."""
        return use in self._beside

    def is_written(self, made: Made) -> bool:
        """Whether it was asked for already."""
        known = made.call in self._written
        self._written.add(made.call)
        return known

    # ---- deciding ------------------------------------------------------------------------------------------------

    def _decide(self, use: Use) -> None:
        if use.call is None or len(use.call.args) != 1 or use.call.keywords:
            self.reasons[use] = f"torch has no counterpart of `{use.module.text(use.whole)}`"
            return
        values = {value for value in self._program.flow.values(use.argument, use.scope) if is_loader_value(value)}
        reason = self._reason(values)
        if reason is not None:
            self.reasons[use] = reason
            return
        calls = [value.site for value in values if isinstance(value.site, ast.Call)]
        sites = self._made_here(use, calls)
        made = [self._made(site, use) for site in sites]
        if made and all(made):
            self.decided[use] = tuple(item for item in made if item is not None)
            self.made |= {item.call: item for item in self.decided[use]}
        elif _assigned_anew(use) is None and use.argument not in calls and self.beside.add(use):
            self.decided[use] = ()
            self._beside.add(use)
            self.values_beside |= values
            return
        elif self._is_run_again(use, calls):
            text = use.module.text(use.argument)
            self.reasons[use] = f"`{text}` is prepared anew each time that this runs, and its constructor stays whole"
            return
        else:
            self.decided[use] = ()
        self.values |= values

    def _reason(self, values: set[Value]) -> str | None:
        """Why DistributedSampler cannot share out these loaders."""
        known = False
        others = [value for value in values if value.kind != "object" or value.ref not in LOADERS_OF_TORCH]
        if others:
            # Of a class and its bases the same one is named in every run.
            name = min(str(value.ref.facts.name if value.kind == "instance" else value.ref) for value in others)
            return f"`{name}` has a constructor of its own: whether it takes a sampler is not known"
        for value in values:
            known = True
            call = value.site
            if not isinstance(call, ast.Call):
                return "where the loader is made is not known"
            located = self._program.locate(call)
            if located is None:
                return "where the loader is made is not known"
            names = self._program.callee_names(call, located[1])
            if not names & LOADERS_OF_TORCH or is_variable(call.func, located[1]):
                return f"`{located[1].module.text(call)}` does not say all that the loader is given"
            given = arguments_of(self._program, call)
            for name in ("sampler", "batch_sampler"):
                own = given.get(name)
                if own is not None and not is_none(own):
                    text = located[1].module.text(own)
                    return f"the loader has a sampler of its own, `{text}`: DistributedSampler would take its place"
            if None in given and self._mentions_samplers():
                return "what `**` gives the loader may hold a sampler of its own"
            dataset = given.get("dataset")
            if dataset is None:
                return "the dataset of the loader is not known"
            if any(is_stream(item) for item in self._program.flow.values(dataset, located[1])):
                return "an iterable dataset has no length: DistributedSampler cannot split it"
        return None if known else "where the loader is made is not known"

    def _mentions_samplers(self) -> bool:
        """Whether any file of the program speaks of samplers, as a text, a name or a keyword."""
        words = {"sampler", "batch_sampler"}
        for module in self._program.flow.modules:
            for node in module.nodes:
                spelt = [getattr(node, field, None) for field in ("id", "attr", "arg", "value")]
                if any(isinstance(item, str) and item in words for item in spelt):
                    return True
        return False

    def _made_here(self, use: Use, calls: list[ast.Call]) -> list[Site]:
        """The constructors that can get a sampler in place of this call; none where others need the whole loader."""
        if use.argument in calls:
            return [Site(use.module, use.scope, use.body, use.argument)] if len(calls) == 1 else []
        path = _assigned_anew(use)
        if path is None:
            return []
        found = []
        for call in calls:
            located = self._program.locate(call)
            if located is None or located[0] is not use.body:
                return []
            statement = blocks.statement_of(use.module, call)
            if not (isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1):
                return []
            if blocks.path_of(statement.targets[0]) != path or isinstance(statement.targets[0], ast.Subscript):
                return []
            found.append(Site(use.module, use.scope, use.body, call))
        return [] if self._is_read_between(use, path, found) else found

    def _is_read_between(self, use: Use, path: str, sites: list[Site]) -> bool:
        """Whether the loader is read before it is prepared, or where it is not prepared at all."""
        module = use.module
        if any(loops_around(module, site.node) != loops_around(module, use.whole) for site in sites):
            return True
        suite = blocks.place(module, use.statement)
        first = min(module.start(site.node) for site in sites)
        if not all(is_within(module, site.node, suite.suite) for site in sites):
            return True
        readers = (
            node
            for node in self._program.nodes_of(use.body)
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        )
        return any(
            blocks.path_of(node) == path and first < module.start(node) < module.start(use.whole) for node in readers
        )

    def _is_run_again(self, use: Use, calls: list[ast.Call]) -> bool:
        """Whether a call runs several times for one loader, so that each would make a new copy of it."""
        if all(self._is_beside(use, call) for call in calls):
            return False
        pending: list[tuple[Module, ast.AST, ast.AST]] = [(use.module, use.whole, use.body)]
        seen: set[ast.AST] = set()
        while pending:
            module, node, body = pending.pop()
            if loops_around(module, node):
                return True
            info = self._program.function_of(body)
            if info is None or body in seen:
                continue
            seen.add(body)
            for caller in self._program.flow.callers(info):
                where = caller.scope.module
                pending.append((where, caller.call, blocks.body_of(where, caller.call)))
        return False

    def _is_beside(self, use: Use, call: ast.Call) -> bool:
        """Whether a loader is made in the same rounds of the same loops."""
        located = self._program.locate(call)
        is_here = located is not None and located[0] is use.body
        return is_here and loops_around(use.module, call) == loops_around(use.module, use.whole)

    # ---- constructors --------------------------------------------------------------------------------------------

    def _made(self, site: Site, use: Use) -> Made | None:
        call = site.node
        assert isinstance(call, ast.Call)
        if call in self.made:
            return self.made[call]
        given = arguments_of(self._program, call)
        dataset = given.get("dataset")
        written = {*BY_PLACE[: len(call.args)], *(item.arg for item in call.keywords)}
        if (
            dataset is None
            or None in given
            or ("shuffle" in given and "shuffle" not in written)
            or len(call.args) > BY_PLACE.index("batch_sampler")
        ):
            return None
        whole = use.whole if call is use.argument else call
        assert isinstance(whole, ast.Call)
        parent = blocks.place(site.module, site.statement).parent
        if isinstance(parent, ast.ClassDef) or not runs_once_in(site.module, whole, site.statement):
            return None
        shuffle = given.get("shuffle")
        if shuffle is None or (isinstance(shuffle, ast.Constant) and not shuffle.value):
            text = "False"
        elif is_plain(shuffle):
            text = source_of(site.module, shuffle)
        else:
            return None
        hoisted = None
        if not is_plain(dataset):
            if not is_first(site.statement, dataset):
                return None
            hoisted = self._name_beside(site, whole, "dataset")
        sampler = self._name_beside(site, whole, "sampler")
        wrapper = whole if whole is not call else None
        return Made(site.module, site.body, call, wrapper, site.statement, dataset, text, sampler, hoisted)

    def _name_beside(self, site: Site, whole: ast.Call, kind: str) -> str:
        """A free name for what belongs to a loader: ``train_sampler`` of ``train_loader``."""
        statement = site.statement
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is whole else None
        path = blocks.path_of(target) if target is not None and not isinstance(target, ast.Subscript) else None
        wanted = name_for((path or "").rpartition(".")[2], kind)
        taken = names_of(site.module)
        for name in (wanted, f"{wanted}_2", *(f"{wanted}_{number}" for number in range(3, 100))):
            owner = self._names.get((site.module, name))
            if owner is None and taken.is_taken(name):
                continue
            if owner is None or (owner[0] is not site.body) or (path is not None and owner[1] == path):
                self._names[site.module, name] = (site.body, path or "")
                return name
        raise AssertionError("no free name")


def _assigned_anew(use: Use) -> str | None:
    """The variable of ``loader = amp.prepare_loader(loader)``."""
    statement = use.statement
    if not (isinstance(statement, ast.Assign) and statement.value is use.whole and len(statement.targets) == 1):
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Subscript) or ast.dump(blocks.reading(target)) != ast.dump(use.argument):
        return None
    return blocks.path_of(target)
