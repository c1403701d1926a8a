"""The start, regions of autocast, and what computes in FP32."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.levels import Level
from amp_rules.plain_torch.loss_scaling import LossScaling
from amp_rules.plain_torch.ranks import join
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site
from amp_rules.text.expression_edits import substitute

_IN_FLOAT32 = '''def in_float32(function):
    """Have a function compute in float32: autocast is off, and half-precision arguments are widened."""
%s
    def widened(value):
%s        return value.float() if getattr(value, "dtype", None) in ({torch}.float16, {torch}.bfloat16) else value

    def computed(*args, **kwargs):
        with {torch}.autocast({DEVICE_TYPE}, enabled=False):
            return function(*map(widened, args), **{name: widened(value) for name, value in kwargs.items()})

    return computed'''
_OF_MODULE = """    if isinstance(function, {torch}.nn.Module):
        function.forward = in_float32(function.forward)
        return function
"""
_OF_LISTS = """        if type(value) in (list, tuple):
            return type(value)(map(widened, value))
"""
_HELPERS = {
    (modules, lists): Helper("in_float32", _IN_FLOAT32 % (_OF_MODULE if modules else "", _OF_LISTS if lists else ""))
    for modules in (False, True)
    for lists in (False, True)
}
"""The helper by whether it is given modules, and whether what it wraps may be given lists of tensors."""
AT_LEAST_FLOAT32 = Helper(
    "at_least_float32",
    '''def at_least_float32(dtype):
    """Return float32 in place of a half-precision type, and any other type as it is."""
    return {torch}.float32 if dtype in ({torch}.float16, {torch}.bfloat16) else dtype''',
)
UNDER_AUTOCAST = Helper(
    "under_autocast",
    '''def under_autocast(function):
    """Return the function, to be run in another thread under the autocast of this one."""
    enabled, dtype = {torch}.is_autocast_enabled({DEVICE_TYPE}), {torch}.get_autocast_dtype({DEVICE_TYPE})

    def computed(*args, **kwargs):
        with {torch}.autocast({DEVICE_TYPE}, dtype=dtype, enabled=enabled):
            return function(*args, **kwargs)

    return computed''',
)
_LIMITS = frozenset({"min_scale", "max_scale"})
_COPIES = frozenset({"copy.deepcopy", "copy.copy", "torch.save", "pickle.dump", "pickle.dumps"})


def _init(translation: Translation, use: Use) -> None:
    """``amp.init(...)``: the processes join, and the scaler is made."""
    lines = []
    if use == translation.joins:
        lines += join(translation, use.module)
    level, scaling = translation.part(Level), translation.part(LossScaling)
    if translation.start is not None and use != translation.start.use:
        if lines:
            translation.put_for(use, "\n".join(lines), gap=True)
        elif level.line is None and scaling.line is None:
            translation.take_out(use)
        else:
            message = "the script starts here too, and what it makes at its start goes from one place to what uses it"
            translation.decline(use.module, use.node, message, "keep the runtime here (--target runtime)", "precision")
        return
    lines += [line for line in (level.line, scaling.line) if line is not None]
    if translation.where:
        lacking = "mixed precision on the CPU, where torch's LSTM raises on some processors"
        translation.cannot_keep(use.module, lacking, order=1)
    given = {item.arg for item in use.call.keywords} if use.call is not None else set()
    if given & _LIMITS:
        translation.cannot_keep(use.module, "limits of the loss scale", order=1)
    if level.place is not None and level.condition is not None:
        translation.insert(use.module, level.place, "\n".join(lines), gap=True)
        translation.take_out(use)
    elif lines:
        translation.put_for(use, "\n".join(lines), gap=not scaling.is_beside_optimizers)
    else:
        translation.take_out(use)


def _autocast(translation: Translation, use: Use) -> None:
    """``amp.autocast()`` becomes ``torch.autocast(DEVICE_TYPE, dtype=AMP_DTYPE, enabled=USE_AMP)``."""
    enabled = use.keyword("enabled")
    if enabled is None:
        level = translation.part(Level).at(use)
        code = f"{{torch}}.autocast({{DEVICE_TYPE}}, dtype={{AMP_DTYPE}}, enabled={level})"
    elif isinstance(enabled, ast.Constant) and enabled.value is False:
        code = "{torch}.autocast({DEVICE_TYPE}, enabled=False)"
    else:
        level = translation.part(Level).at(use)
        code = f"{{torch}}.autocast({{DEVICE_TYPE}}, dtype={{AMP_DTYPE}}, enabled={level} and ({ast.unparse(enabled)}))"
    translation.replace(use.module, use.whole, code)


def _float_function(translation: Translation, use: Use) -> None:
    """``amp.float_function(f)`` becomes ``in_float32(f)``; a module gets such a ``forward``."""
    wrapped = [other for other in translation.uses_of("float_function") if other.module is use.module]
    modules = [other for other in wrapped if _is_of_module(translation, other)]
    if use in modules:
        for site in _copied_models(translation):
            message = f"`{site.module.text(site.node)}` copies a model, and plain torch would not copy with it that "
            message += f"`{use.module.text(use.argument)}` computes in float32"
            recipe = "call its function in a region without autocast by hand, or --target runtime"
            translation.decline(use.module, use.node, message, recipe, "precision")
            return
    helper = _HELPERS[bool(modules), any(_may_get_lists(translation, other) for other in wrapped)]
    translation.replace(use.module, use.node, substitute(translation.helper(use, helper, "precision")))


def _may_get_lists(translation: Translation, use: Use) -> bool:
    """Whether what computes in FP32 is a function of the project, which may be given anything, or is given a list."""
    if use.call is None:
        return True
    around = use.scope.module.parents.get(use.call)
    if isinstance(around, ast.Call) and around.func is use.call and any(map(_lists_tensors, around.args)):
        return True
    found = translation.program.flow.values(use.argument, use.scope)
    return not found or any(value.kind in ("function", "instance", "class", "partial") for value in found)


def _lists_tensors(given: ast.expr) -> bool:
    """Whether an argument is a list of more than numbers: ``torch.einsum("ij,jk->ik", [a, b])``."""
    return isinstance(given, (ast.List, ast.Tuple)) and any(not isinstance(item, ast.Constant) for item in given.elts)


def _is_of_module(translation: Translation, use: Use) -> bool:
    return use.call is not None and any(map(is_module, translation.program.flow.values(use.argument, use.scope)))


def _copied_models(translation: Translation) -> list[Site]:
    """Calls that copy a whole model, or save one."""
    program = translation.program
    return [
        site
        for site in program.calls_to(_COPIES)
        if isinstance(site.node, ast.Call)
        and site.node.args
        and isinstance(site.node.args[0], (ast.Name, ast.Attribute, ast.Subscript))
        and program.roles.modules(site.node.args[0], site.scope)
    ]


def _at_least_float32(translation: Translation, use: Use) -> None:
    """``amp.at_least_float32(x.dtype)`` becomes a helper's call."""
    translation.replace(use.module, use.node, substitute(translation.helper(use, AT_LEAST_FLOAT32, "precision")))


def _in_this_region(translation: Translation, use: Use) -> None:
    """``amp.in_this_region(f)`` becomes ``under_autocast(f)``."""
    translation.replace(use.module, use.node, substitute(translation.helper(use, UNDER_AUTOCAST, "precision")))


WORDS: dict[str, Translate] = {
    "init": _init,
    "autocast": _autocast,
    "float_function": _float_function,
    "at_least_float32": _at_least_float32,
    "in_this_region": _in_this_region,
}
