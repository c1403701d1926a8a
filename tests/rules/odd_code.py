"""Code that few training scripts hold, and that any may: what :mod:`damage` puts into them.

``{0}`` stands for the indentation of the place.
"""

from __future__ import annotations

# The first row goes above some statements, which are indented under it; the others go below them.
WRAPPERS = (
    ("if True:",),
    ("try:", "finally:\n{0}    pass"),
    ("try:", "except (ValueError, TypeError) as error:\n{0}    raise"),
    ("with open(__file__) as file, open(__file__):",),
    ("for _ in range(1):", "else:\n{0}    pass"),
    ("while True:", "    break"),
    ("match 1:\n{0}    case 1 | 2 if True:",),
    ("if (n := 1) and n:", "else:\n{0}    ..."),
    ("async def later():",),
    ("def nested(*args, key=None, **kwargs):", "nested()"),
    ("class Holder:",),
    ("@staticmethod\n{0}def work():", "work"),
    ("with torch.no_grad():",),
    ("if __name__ == '__main__':",),
)

ODD = (
    "match sys.argv:\n{0}    case [_, str() as name, *rest]:\n{0}        pass\n"
    "{0}    case {{'a': 1, **more}} | _:\n{0}        pass",
    "if (count := 10) > 5: print(count); count += 1",
    "@(lambda f: f)\n{0}# between\n{0}@property\n{0}def odd(self, /, a, *, b: int = 3, **c) -> 'None': return None",
    "async def odd_task():\n{0}    async with a as b, c:\n{0}        async for d in e: await d",
    "odd = lambda *a, k=(lambda: 1), **b: (yield_ for yield_ in a if k)",
    "def odd_outer():\n{0}    def odd_inner(): nonlocal_ = 1; return nonlocal_\n{0}    return odd_inner",
    "x = 1; y = 2 ; z = 3;",
    "x = 1 + \\\n    2",
    'odd = """\n  a # no comment\n\tloss.backward()\n"""',
    "odd = (  # first\n\n{0}    1,  # second\n  # third\n{0})",
    "assert True, (\n'long'\n'message')",
    "del_ = [*range(3), *[4]]; del del_",
    "global_ = {{**{{}}, 'k': [i for i in range(3) if i]}}",
    "print(f'{{1!r:>{{3}}}} {{{{}}}}', end='')",
    "try: pass\n{0}except ValueError: pass\n{0}else: pass\n{0}finally: pass",
    "class Odd(object, metaclass=type): x: int; y: 'str' = ''",
    "with (open(__file__) as a, open(__file__) as b): pass",
    "while False: continue\n{0}else: pass",
    "a = b = c = None",
    "a, (b, *c) = 1, (2, 3)",
    "a: 'list[int]' = []",
    "переменная = 1",
    "амр = 'х' # комментарий",
    "raise_ = ...",
    "r'\\d' rb'' if 0 else b'\\x00'",
    "0xFF, 1_000, 1e-3j",
    "amp = 3",
    "import amp_runtime_other as amp",
    "scaler = None",
    "from torch import *",
    "import torch as t, os.path, sys as system",
    "# only a comment",
    "#",
    "\x0c",
    "exec('x = 1')",
    "type(loss) if False else None",
    "lambda: (yield)",
    "{0}",
    "return_ = not (-1 ** 2 @ 3 if 0 else 1) is None",
    "print(*[1], **{{}}, )",
    "x = [\n1,\n        2]\n{0}y = {{\n}}",
    "loss.backward()",
    "optimizer.step()",
    "optimizer.zero_grad(set_to_none=True)",
    "model.eval()",
    "model = model",
    "loss = (\n{0}    loss  # the loss\n{0})",
)

# Names that mean something to the tool.
NAMES = (
    "amp",
    "amp_runtime",
    "model",
    "loss",
    "optimizer",
    "torch",
    "x",
    "self",
    "модель",
    "scaler",
    "loader",
    "_",
    "match",
    "nn",
)
