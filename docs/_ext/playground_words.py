"""What the playground says, in the languages of its pages. Nothing of it stands anywhere else.

What the linter and the migrations print is theirs, and stays as it is.
"""

from __future__ import annotations

from chinese import FOLDER

ENGLISH = {
    "level": "Level",
    "dtype": "Half type",
    "device": "Device",
    "ddp": "several processes",
    "text": "Python",
    "loading": "Python is loading (about 13 MB, once) ...",
    "needs_server": "A browser runs this only from a web server: python -m http.server -d docs/_build/html",
    "does_not_start": "The linter does not start here: {reason}",
    "refused": "the browser refuses it",
    "too_long": "This text took too long; it is judged again when it changes.",
    "nothing": "Nothing found.",
    "one": "1 finding",
    "many": "{count} findings",
    "line": "Line {line}",
    "problem": "Line {line}: {message}",
    "error": "error",
    "warning": "warning",
    "performance": "performance",
    "info": "info",
    "runtime": "with the runtime",
    "torch": "in plain torch",
    "missing": "This build of the site has no playground, because Pyodide was not fetched: {command} does it where npm "
    "reaches its registry.",
}
CHINESE = {
    "level": "级别",
    "dtype": "半精度类型",
    "device": "设备",
    "ddp": "多进程",
    "text": "Python 代码",
    "loading": "正在加载 Python（约 13 MB，只需一次）……",
    "needs_server": "浏览器只能从 Web 服务器运行它：python -m http.server -d docs/_build/html",
    "does_not_start": "检查器在这里无法启动：{reason}",
    "refused": "浏览器拒绝运行",
    "too_long": "这段代码检查的时间太长；修改之后会重新检查。",
    "nothing": "没有发现问题。",
    "one": "1 个问题",
    "many": "{count} 个问题",
    "line": "第 {line} 行",
    "problem": "第 {line} 行：{message}",
    "error": "错误",
    "warning": "警告",
    "performance": "性能",
    "info": "提示",
    "runtime": "使用运行时",
    "torch": "纯 PyTorch",
    "missing": "这次构建的站点没有在线试用，因为没有取得 Pyodide：在 npm 能访问软件源的机器上，由 {command} 取得。",
}


def words(page: str) -> dict[str, str]:
    """Return what the playground says on a page, by what it is for."""
    return CHINESE if page.startswith(FOLDER) else ENGLISH
