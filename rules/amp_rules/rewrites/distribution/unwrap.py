"""Save the model itself, not its wrapper.

## What it does
`model.state_dict()` becomes `amp.unwrap(model).state_dict()`, `torch.save(model, ...)` saves `amp.unwrap(model)`, as
does an `nn.Sequential(model)` that is made only to be saved, and `model.module`, which `DataParallel` had, becomes
`amp.unwrap(model)`. So it is in a static method of the model's class: `Net.package(model)`. A model that is exported
or traced is unwrapped too: `torch.onnx.export(model, ...)`, `torch.jit.trace(model, ...)` or
`writer.add_graph(model, ...)`, and in a module that is made for that alone, `torch.onnx.export(Encoder(model), ...)`.
Of a choice between the model and what is in its wrapper,
`model.module.state_dict() if hasattr(model, "module") else model.state_dict()`, one branch stays.

## Why
A checkpoint should not tell how many processes wrote it. And torch cannot trace `DistributedDataParallel`, whose
forward pass may wait for the other processes besides.

## Before
    torch.save(model.state_dict(), "model.pt")

## After
    torch.save(amp.unwrap(model).state_dict(), "model.pt")

## When it declines
In what nothing calls, and of a variable that holds the model beside another one that gets the wrapper. Models have no
wrapper if they are sharded, or if gradients are averaged at the step (`delay_allreduce`); then nothing is changed.
Where `amp.keep_module_prefix` stands for `DataParallel`, `model.module` works as before.

## Leaving it out
No: a model that is saved as a whole would include its wrapper, tracing would fail because of the wrapper, and
`model.module` would raise an AttributeError in one process.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TypeGuard

import libcst as cst

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.context import Change, Context
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.saved_chains import chains
from amp_rules.plan.model_homes.traced_cases import models_in_traced_cases, traced_model
from amp_rules.plan.model_homes.variables import NOTHING
from amp_rules.plan.rule import Rule
from amp_rules.plan.statement_order import comes_after
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.text.actions import Replace
from amp_rules.torch.models import CHAINS
from amp_rules.torch.wrappers import DATA_PARALLEL

RULE = Rule("AMP204", "unwrap-to-save", "What is saved is the model itself.", "distribution")

_ASKING = frozenset({"hasattr", "isinstance"})


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each model that is saved, and for each choice between a model and its wrapper."""
    saved = list(_saved(context))
    bare = {site.node for site, _ in saved if isinstance(site.node, ast.expr)}
    twice = {node for node in bare if isinstance(node, ast.IfExp) and {node.body, node.orelse} <= bare}
    saved = [(site, message) for site, message in saved if site.node not in twice]
    bare -= twice
    for choice, site in {_choice(site): site for site, _ in saved}.items():
        if choice is not None and _are_alike(choice, bare):
            message = f"both branches are the same now: `{site.module.text(choice.test)}` need not be asked"
            yield Change(RULE, site.module, choice, message, [Replace(choice, _last_branch)])
    for site, message in saved:
        assert isinstance(site.node, ast.expr)
        written = context.vocabulary.unwrapped(site.module, site.node, owner=_is_of_owner(site.node))
        yield Change.written(RULE, site.module, site.node, message, written)


def _saved(context: Context) -> Iterator[tuple[Site, str]]:
    """Yield each model that is saved, and what is said of it."""
    if context.processes.keeps_names:
        return
    was_parallel = bool(context.program.calls_to(DATA_PARALLEL))
    tables = context.processes.table_sharding
    whole = {site.node for site in tables.states} if tables is not None else set()
    prepared = _prepared(context)
    idle = uncalled(context.program)
    cases = dict(models_in_traced_cases(context.program))
    for site in _unwraps(context.program, cases):
        assert isinstance(site.node, ast.expr)
        attribute = site.module.parents[site.node]
        if site.module.parents[attribute] in whole:
            continue  # `amp.full_state_dict` takes the wrapper off
        is_module = _is_of_owner(site.node)
        has_wrapper = not context.processes.averaging.delayed and context.processes.sharding is None
        if not has_wrapper and not (is_module and was_parallel):
            continue
        if not is_module and (site.body in idle or _is_early(context, site)):
            continue  # what nothing calls stays as it is
        values = context.program.roles.modules(site.node, site.scope)
        if not is_module and _is_bare(context, site, values):
            continue  # another variable got the wrapper
        if not is_module and prepared and values and prepared.isdisjoint(values):
            continue  # a part of a model, which has no wrapper of its own
        is_traced = site.node in cases or _traced(context.program, attribute, site.scope) is site.node
        verb = "traced" if is_traced else "saved"
        yield site, f"`{site.module.text(site.node)}` is {verb} without its wrapper"


def _is_of_owner(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether it is ``model.module``, in place of which ``model`` is unwrapped."""
    return isinstance(node, ast.Attribute) and node.attr == "module"


def _choice(site: Site) -> ast.IfExp | None:
    """The choice that a model stands in a branch of."""
    below = site.node
    for above in site.module.ancestors(site.node):
        if isinstance(above, ast.stmt):
            return None
        if isinstance(above, ast.IfExp):
            return above if below is not above.test else None
        below = above
    return None


def _are_alike(choice: ast.IfExp, bare: set[ast.expr]) -> bool:
    """Whether both branches say the same once the wrapper is off: the condition asks for nothing but the wrapper."""
    calls = [node for node in walk(choice.test) if isinstance(node, (ast.Call, ast.NamedExpr, ast.Await))]
    if not all(isinstance(node, ast.Call) and last_name(node.func) in _ASKING for node in calls):
        return False
    one, other = ([node for node in walk(branch) if node in bare] for branch in (choice.body, choice.orelse))
    if choice not in bare and len(one) != len(other):
        return False
    return _without_wrapper(choice.body, one) == _without_wrapper(choice.orelse, other)


def _without_wrapper(branch: ast.expr, models: list[ast.expr]) -> str:
    """What a branch says once the wrapper of its models is off."""
    text = ast.unparse(branch)
    for node in filter(_is_of_owner, models):
        text = text.replace(ast.unparse(node), ast.unparse(node.value))
    return text


def _last_branch(node: cst.BaseExpression) -> cst.BaseExpression:
    """``x if test else y`` becomes ``y``."""
    return cst.ensure_type(node, cst.IfExp).orelse


def _prepared(context: Context) -> set[Value]:
    """What the variables hold that are prepared; nothing where that is not known of all of them."""
    cells = [context.program.flow.cells.get(home.key) for home in context.precision.homes]
    return set().union(*(cell.values for cell in cells if cell is not None)) if all(cells) else set()


def _is_early(context: Context, site: Site) -> bool:
    """Whether a place comes before its model is prepared, or in a function that is called there alone."""
    homes = context.precision.homes
    if any(_is_above(site, home) for home in homes):
        return True
    given = _given(context.program, site)
    return bool(given) and all(any(_is_above(item, home) for home in homes) for item in given)


def _is_bare(context: Context, site: Site, values: set[Value]) -> bool:
    """Whether a variable was given the model alone, and nothing after another one got the wrapper around it."""
    name, module = site.node, site.module
    if not isinstance(name, ast.Name):
        return False
    cells = context.program.flow.cells
    homes = [home for home in context.precision.homes if not values.isdisjoint(cells.get(home.key, NOTHING).values)]
    if not homes:
        return False
    stores = [node for node in module.nodes if isinstance(node, ast.Name) and node.id == name.id and not _is_read(node)]
    if not stores or any(blocks.body_of(module, node) is not site.body for node in stores):
        return False
    given = [blocks.statement_of(module, node) for node in stores]
    return all(
        home.body is site.body
        and home.variable != name.id
        and not (home.in_place or home.before)
        and not any(item is home.statement or comes_after(module, item, home.statement) for item in given)
        for home in homes
    )


def _given(program: Program, site: Site) -> list[Site]:
    """What the calls of a function give it for the parameter that stands at a place; nothing where one is not known."""
    info = program.flow.functions.get(site.body)
    name = site.node.id if isinstance(site.node, ast.Name) else None
    if (
        info is None
        or name not in info.positional
        or info.cls is not None
        or not isinstance(info.node, ast.FunctionDef)
    ):
        return []
    if any(isinstance(node, ast.Name) and node.id == name for node in walk(info.node) if not _is_read(node)):
        return []
    callers = program.flow.callers(info)
    named = [node for module in program.flow.modules for node in module.nodes if _is_read(node)]
    if sum(last_name(node) == info.node.name for node in named) != len(callers):
        return []  # it goes elsewhere too
    found = []
    for caller in callers:
        given = argument_at(caller.call, name, info.positional.index(name))
        if given is None:
            return []
        body = blocks.body_of(caller.scope.module, caller.call)
        found.append(Site(caller.scope.module, caller.scope, body, given))
    return found


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)


def _is_above(site: Site, home: Home) -> bool:
    """Whether a place comes before the one where its model is prepared: no wrapper is there yet."""
    assert isinstance(site.node, ast.expr)
    if site.body is not home.body or blocks.path_of(site.node) != home.variable or home.before or home.in_place:
        return False
    if home.inline is None and site.node in {*walk(home.statement)}:
        return not any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(site.module, home.statement))
    return not comes_after(site.module, site.statement, home.statement)


def _unwraps(program: Program, cases: Mapping[ast.expr, Scope]) -> list[Site]:
    """Models whose state is saved, or that are saved whole, and ``model.module`` of what was ``DataParallel``."""
    found: dict[ast.AST, Site] = {}
    saved = {value.site for value in chains(program)[1]}
    for node, body, scope in program.nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict":
            receiver = node.func.value
            if isinstance(receiver, ast.Attribute) and receiver.attr == "module":
                continue
            trained = any(program.is_trained(value) for value in program.roles.modules(receiver, scope))
            if trained and (not program.is_model_code(body) or _is_given_to_static(program, receiver, body)):
                found[receiver] = Site(scope.module, scope, body, receiver)
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            if "torch.save" in program.names(node.func, scope) and node.args:
                for part in walk(node.args[0]):
                    if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
                        parent = scope.module.parents[part]
                        if isinstance(parent, (ast.Attribute, ast.Call)) and parent is not node:
                            if not (isinstance(parent, ast.Call) and program.callee_names(parent, scope) & CHAINS):
                                continue
                        if any(program.is_trained(value) for value in program.roles.modules(part, scope)):
                            found[part] = Site(scope.module, scope, body, part)
            for part in node.args if node in saved else ():
                if any(program.is_trained(value) for value in program.roles.modules(part, scope)):
                    found[part] = Site(scope.module, scope, body, part)
            traced = _traced(program, node, scope)
            if traced is not None and not program.is_model_code(body):
                found[traced] = Site(scope.module, scope, body, traced)
        elif isinstance(node, ast.Attribute) and node.attr == "module" and isinstance(node.ctx, ast.Load):
            values = {value for value in program.roles.modules(node.value, scope) if program.is_trained(value)}
            if values and not _is_own_part(program, values) and not program.is_model_code(body):
                found[node] = Site(scope.module, scope, body, node)
    for given, scope in cases.items():
        if isinstance(given, (ast.Name, ast.Attribute)) and given not in found:
            if any(program.is_trained(value) for value in program.roles.modules(given, scope)):
                found[given] = Site(scope.module, scope, blocks.body_of(scope.module, given), given)
    return list(found.values())


def _is_given_to_static(program: Program, receiver: ast.expr, body: ast.AST) -> bool:
    """Whether it is a parameter of a model's static method, which is given the wrapper as any function is."""
    info = program.function_of(body)
    return (
        info is not None
        and info.cls is not None
        and info.is_static
        and isinstance(receiver, ast.Name)
        and receiver.id in info.parameters
    )


def _traced(program: Program, node: ast.AST, scope: Scope) -> ast.expr | None:
    """The trained model whose graph a call writes down, where that does not take the model's own place."""
    if not isinstance(node, ast.Call):
        return None
    model = traced_model(program, node, scope)
    if not isinstance(model, (ast.Name, ast.Attribute)):
        return None
    parent = scope.module.parents[node]
    if isinstance(parent, ast.Assign) and any(ast.unparse(item) == ast.unparse(model) for item in parent.targets):
        return None
    return model if any(program.is_trained(value) for value in program.roles.modules(model, scope)) else None


def _is_own_part(program: Program, values: set[Value]) -> bool:
    """Whether ``module`` is an attribute of a project's own class, which takes no wrapper off."""
    own = {
        value
        for value in values
        if value.kind == "instance" and any(_is_given(program, info) for info in value.ref.mro())
    }
    return bool(own) and (own == values or not program.calls_to(DATA_PARALLEL))


def _is_given(program: Program, info: ClassInfo) -> bool:
    cell = program.flow.cells.get((info.facts.node, "module"))
    return cell is not None and bool(cell.values)
