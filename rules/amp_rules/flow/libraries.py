"""What calls of libraries and containers give."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from amp_rules.flow.cells import Mark
from amp_rules.flow.command_line import declare_commands, declare_option
from amp_rules.flow.containers import Containers, is_container
from amp_rules.flow.parts import Evaluation, Invocation
from amp_rules.flow.reflection import Reflection
from amp_rules.flow.store import Store
from amp_rules.flow.values import Form, MemberOf, Value
from amp_rules.roles.kinds import is_chain, is_module, is_optimizer
from amp_rules.torch.containers import CONFIG_LOADERS, CONTAINERS, KEEP_EACH_ONCE, NAMESPACES
from amp_rules.torch.distributed import PROCESSES, SPAWNS
from amp_rules.torch.models import PUTS_PART_BY_NAME, RETURNS_RECEIVER
from amp_rules.torch.optimizers import PARAMETERS_OF_OPTIMIZER
from amp_rules.torch.wrappers import COPIES_FIRST_ARGUMENT, GIVES_FUNCTIONS, RETURNS_FIRST_ARGUMENT

# Of the parts of a model no more is asked than whose parameters they hold.
_PARTS = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children", "named_children"})
_ADDING = frozenset({"append", "add", "insert", "appendleft"})
_TAKING = frozenset({"get", "pop", "setdefault", "popleft", "__getitem__"})
_LOADS = "load_state_dict"
_CONTAINER_METHODS = _ADDING | _TAKING | {"extend", "update", "values", "copy", "items"}


class Libraries:
    """Calls of what is not the project's own."""

    def __init__(self, store: Store, containers: Containers, reflection: Reflection, evaluation: Evaluation) -> None:
        self._store = store
        self._containers = containers
        self._reflection = reflection
        self._evaluation = evaluation
        self._factory_calls: dict[ast.expr, ast.Call] = {}
        # Calls are evaluated again and again; what a method gives is the same each time.
        self._results: dict[tuple[Value, ast.Call, Value | None], Value] = {}
        self._functions: dict[str, Callable[[Invocation], set[Value]]] = {
            "builtins.next": lambda given: containers.elements(given.first),
            "builtins.enumerate": self._enumerate,
            "builtins.zip": self._zip,
            "builtins.map": self._map,
            "builtins.filter": lambda given: given.arguments[1] if len(given.arguments) > 1 else set(),
            "builtins.dict": self._dict,
            "dataclasses.field": self._field,
            "itertools.chain": self._chain,
            "itertools.chain.from_iterable": self._chain,
            **{name: partial(self._start, name) for name in PROCESSES},
        }

    # ---- functions and classes -----------------------------------------------------------------------------------

    def apply(self, name: str, given: Invocation) -> set[Value]:
        """What calling a function or class of a library gives."""
        reflected = self._reflection.apply(name, given)
        if reflected is not None:
            return reflected
        function = self._functions.get(name)
        if function is not None:
            return function(given)
        if name == "builtins.list" and not (given.node.args or given.node.keywords):
            return {Value("sequence", Form.PLAIN, given.node)}
        if name in RETURNS_FIRST_ARGUMENT:
            return given.first or given.keywords.get("module", set()) or given.keywords.get("iterable", set())
        if name in COPIES_FIRST_ARGUMENT:
            return {value.at(given.node) if value.kind in ("object", "instance") else value for value in given.first}
        if name in KEEP_EACH_ONCE and (kept := self._parameters(given)):
            return kept
        if name in CONFIG_LOADERS:
            return {Value("sequence", Form.LOADED, given.node)}
        if name in PARAMETERS_OF_OPTIMIZER:
            return {Value("parameters", value) for value in given.first}
        if name in GIVES_FUNCTIONS:
            made = Value("sequence", Form.PLAIN, given.node)
            for index, given_name in enumerate(GIVES_FUNCTIONS[name]):
                self._store.write_element(made, index, {Value("external", given_name)})
            return {made}
        return {self._made(name, given)}

    def _made(self, name: str, given: Invocation) -> Value:
        """A new object, with what it is given where it is a container."""
        made = Value("object", name, given.node)
        if name == "collections.defaultdict":
            self._store.write_element(made, Mark.ANY, self._made_by_default(given))
        if name in NAMESPACES or (name in CONTAINERS and name != "torch.nn.ModuleList"):
            self._containers.fill(made, given)
        if name.endswith((".Sequential", "ModuleList")):
            self.put_parts(made, given)
        return made

    def put_parts(self, made: Value, given: Invocation) -> None:
        """Store the parts that a list or a chain of modules is given, one by one, in a container, or as named pairs."""
        for values in given.arguments:
            parts = self._containers.elements(values)
            pairs = {value for value in parts if value.kind == "sequence"}
            self._store.write_element(made, Mark.ANY, values | parts | self._containers.elements(pairs))

    def _made_by_default(self, given: Invocation) -> set[Value]:
        """What a ``defaultdict`` holds where nothing was put."""
        found: set[Value] = set()
        for factory in given.first:
            if factory.kind == "external":
                found.add(Value("sequence", Form.DEFAULT, given.node))
            elif given.node.args:
                found |= self._made_by(factory, given.node.args[0], given)
        return found

    def _field(self, given: Invocation) -> set[Value]:
        """What a field of a data class holds by default: ``field(default_factory=lambda: Trainer)``."""
        found = set(given.keywords.get("default", ()))
        for item in given.node.keywords:
            if item.arg == "default_factory":
                for factory in given.keywords.get("default_factory", ()):
                    found |= self._made_by(factory, item.value, given)
        return found or {self._made("dataclasses.field", given)}

    def _made_by(self, factory: Value, node: ast.expr, given: Invocation) -> set[Value]:
        """What a factory makes that a call is given, where it is called without arguments."""
        call = self._factory_calls.setdefault(node, ast.Call(node, [], []))
        return self._evaluation.calls.apply(factory, Invocation(call, [], {}, given.scope, given.overlay))

    def _enumerate(self, given: Invocation) -> set[Value]:
        return self._containers.rows([(1, self._containers.elements(given.first))], given.node)

    def _zip(self, given: Invocation) -> set[Value]:
        parts = [(index, self._containers.elements(values)) for index, values in enumerate(given.arguments)]
        return self._containers.rows(parts, given.node)

    def _map(self, given: Invocation) -> set[Value]:
        results: set[Value] = set()
        for value in given.first:
            if value.kind == "function":
                for parameter, values in zip(value.ref.parameters, given.arguments[1:], strict=False):
                    self._store.write((value.ref.node, parameter), self._containers.elements(values))
                results |= self._store.read((value.ref.node, Mark.RETURN))
        return {self._containers.made(Form.MAPPED, given.node, results)}

    def _start(self, name: str, given: Invocation) -> set[Value]:
        """Give what a new process runs its arguments: behind the number of the process, where it gets one."""
        starts_several = name in SPAWNS
        functions = given.keywords.get("fn" if starts_several else "target") or given.first
        arguments = given.keywords.get("args", set())
        if not arguments and starts_several and len(given.arguments) > 1:
            arguments = given.arguments[1]
        for value in functions if arguments else ():
            if value.kind == "function":
                for index, parameter in enumerate(value.ref.positional[int(starts_several) :]):
                    self._store.write((value.ref.node, parameter), self._containers.element(arguments, index))
        return {self._made(name, given)}

    def _chain(self, given: Invocation) -> set[Value]:
        made = Value("sequence", Form.PLAIN, given.node)
        for values in given.arguments:
            kept = {value for value in values if value.kind == "parameters"}
            self._store.write_element(made, Mark.ANY, self._containers.elements(values) | kept)
        return {made}

    def _parameters(self, given: Invocation) -> set[Value]:
        """The parameters that a set is made of, in a list or as they are."""
        lists = {value for value in given.first if value.kind == "sequence"}
        found = given.first | self._containers.elements(lists)
        return {value for value in found if value.kind == "parameters"}

    def _dict(self, given: Invocation) -> set[Value]:
        pairs = {value for value in given.first if _is_of_pairs(value)}
        if given.first and not pairs:
            return given.first
        made = Value("sequence", Form.PLAIN, given.node)
        for row in self._containers.elements(pairs):
            self._store.write_element(made, Mark.ANY, self._containers.element({row}, 1))
        for keyword, values in given.keywords.items():
            if keyword is not None:
                self._store.write_element(made, keyword, values)
        return {made} | (given.first - pairs)

    # ---- methods -------------------------------------------------------------------------------------------------

    def apply_method(self, target: Value, given: Invocation) -> set[Value]:
        """What calling an attribute gives that is not known from inside."""
        of, name = target.ref
        receiver = target.receiver
        assert receiver is not None
        if receiver.kind in ("object", "sequence") and name == "__iter__":
            return {receiver}  # as `iter` does
        if receiver.kind in ("object", "sequence") and name == "__next__":
            return self._containers.elements({receiver})
        if receiver.kind == "sequence" or (name in _CONTAINER_METHODS and is_container(receiver)):
            return self._container_method(receiver, name, given)
        if of is MemberOf.DICTIONARY:
            return self._reflection.apply_to_dictionary(receiver, name, given)
        if name == "add_argument":
            declare_option(given.node, self._store)
        if name == "set_defaults":
            declare_commands(given.keywords, self._store)
        if name in RETURNS_RECEIVER:
            # What an attribute of a trainer gives is the attribute, of which no more is known, and not the trainer.
            is_of_other = of is MemberOf.RESULT and receiver.kind == "instance" and not is_module(receiver)
            return set() if is_of_other else {receiver}
        if name in PUTS_PART_BY_NAME and len(given.arguments) == 2:
            if is_chain(receiver):
                self._store.write_element(receiver, Mark.ANY, given.arguments[1])
            attribute = given.node.args[0]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                self._store.write_attribute(receiver, attribute.value, given.arguments[1])
            return set()
        if name == _LOADS and (is_module(receiver) or is_optimizer(receiver)):
            # Names of missing keys, or nothing: ``model = model.load_state_dict(saved)`` is a mistake of the script.
            return set()
        if name in _PARTS and receiver.kind in ("object", "instance", "attribute"):
            return {Value("parameters", receiver)}
        if receiver.kind == "object" and name == "next":
            return self._containers.elements({receiver})
        # Chains of methods on what methods gave (tensors, mostly) end in one value, or they would never stop growing.
        if of is MemberOf.RESULT:
            # What is given parameters may be the optimizer of their model: ``config.training.optimizer.make(...)``.
            is_given = any(value.kind == "parameters" for value in given.first)
            return {Value("object", "", given.node if is_given else None, is_result=True)}
        # Whose method it was is of interest for models: an optimizer may be given what it gave.
        owner = receiver if is_module(receiver) else None
        key = target, given.node, owner
        made = self._results.get(key)
        if made is None:
            made = Value("object", f"{receiver.ref}.{name}", given.node, owner, is_result=True)
            self._results[key] = made
        return {made}

    def _container_method(self, receiver: Value, name: str, given: Invocation) -> set[Value]:
        last = given.arguments[-1] if given.arguments else set()
        if name == "update":
            self._containers.fill(receiver, given)
        elif name in _ADDING:
            self._store.write_element(receiver, Mark.ANY, last)
        elif name == "extend":
            self._store.write_element(receiver, Mark.ANY, self._containers.elements(given.first))
        elif name == "copy":
            made = Value("sequence", Form.LOADED if receiver.ref is Form.LOADED else Form.COPY, given.node)
            self._containers.copy_items(made, {receiver})
            return {made}
        elif name == "values":
            return {self._containers.made(Form.VALUES, given.node, self._containers.elements({receiver}))}
        elif name == "items":
            return self._containers.rows([(1, self._containers.elements({receiver}))], given.node)
        elif name in _TAKING:
            return self._taken(receiver, name, given)
        return set()

    def _taken(self, receiver: Value, name: str, given: Invocation) -> set[Value]:
        """``table.get(key, default)``."""
        key = given.node.args[0] if given.node.args else None
        default = given.arguments[1] if len(given.arguments) > 1 else set()
        found = (
            self._containers.element({receiver}, key.value)
            if isinstance(key, ast.Constant)
            else self._containers.elements({receiver})
        )
        if name == "setdefault" and len(given.arguments) > 1:
            index = key.value if isinstance(key, ast.Constant) else Mark.ANY
            self._store.write_element(receiver, index, default)
        return found | default


def _is_of_pairs(value: Value) -> bool:
    """Whether a dictionary is made of its pairs: ``[(key, net), ...]``, ``zip(keys, nets)``; not a copy of another."""
    is_list = isinstance(value.site, (ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp))
    return value.kind == "sequence" and (value.ref is Form.ROWS or (value.ref is Form.PLAIN and is_list))
