"""What a script prints that no two of its runs have in common, known by its pattern.

The time of day, dates, durations, speeds, sizes of memory, addresses, temporary folders. A number is left out that has
a unit of these after it ("3.2 s", "12 it/s", "512 MiB"), or a word for them before it ("time: 3.2", "took 3").
"""

from __future__ import annotations

import re

OMITTED = "…"
"""Stands where something was left out."""

_INTEGER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])"
_NUM = rf"[-+]?(?:{_INTEGER}|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)"
NUMBER = re.compile(rf"{_NUM}|(?<![A-Za-z])[-+]?(?:nan|inf(?:inity)?)(?![A-Za-z])", re.IGNORECASE)
"""A number in a text."""

# ---- dates and times of day ----------------------------------------------------------------------------------

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\.?,?"
_CLOCK = r"\d{1,3}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?!\d)"
_TIMES = (
    # Wed Jun  9 04:26:40 1993
    rf"{_DAY}\s+{_MONTH}\s+\d{{1,2}}\s+{_CLOCK}(?:\s+[A-Z]{{3,4}})?(?:\s+\d{{4}})?",
    # 9 Jun 1993 04:26:40, Jun 9 1993, Jun09_04-26-40
    rf"(?:{_DAY}\s+)?\d{{1,2}}[ -]{_MONTH}[ -]\d{{2,4}}(?:\s+{_CLOCK})?",
    rf"(?<![A-Za-z]){_MONTH}[ _-]?\d{{1,2}}(?:,? \d{{4}}|[_-]\d{{2}}[-:]\d{{2}}(?:[-:]\d{{2}})?)",
    # 1993-06-09T04:26:40.123Z, 1993_06_09, 19930609-042640, 9/6/1993
    r"(?<!\d)(?:19|20)\d{2}([-/._])\d{1,2}\1\d{1,2}"
    r"(?:[T _-]{1,3}\d{1,2}[-:.h_]?\d{2}(?:[-:.m_]?\d{2}(?:[.,]\d+)?)?)?(?:Z|[+-]\d{2}:?\d{2})?(?!\d)",
    r"(?<!\d)(?:19|20)\d{6}(?:[-_T ]?\d{4,6})?(?!\d)",
    rf"\d{{1,2}}[/.]\d{{1,2}}[/.](?:19|20)\d{{2}}(?:,?\s+{_CLOCK})?",
    # 04:26:40, 1 day, 0:12:03.5
    rf"(?:\d+ days?, )?(?<![\d.:]){_CLOCK}(?!:)",
    # Seconds since 1970, in the years of deep learning.
    r"(?<![\d.])1[4-9]\d{8}(?:\d{3}|\.\d+)?(?!\d)",
)

# ---- what is of one process ----------------------------------------------------------------------------------

_OWN = (
    r"\b0x[0-9a-fA-F]+\b",
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    r"/(?:private/)?(?:tmp|var/tmp|var/folders|dev/shm)/[^\s'\"),;]+",
)

# ---- durations, speeds and sizes of memory -------------------------------------------------------------------

_SECONDS = r"secs?|seconds?"
_UNIT = (
    rf"(?:ns|nsec|us|usec|µs|μs|ms|msecs?|milliseconds?|microseconds?|s|{_SECONDS}|"
    # "0.1 min 0.05 max 0.3" is no duration.
    r"mins?(?!\s*[:=]?\s*[-+.\d])|minutes?|h|hrs?|hours?|days?|"
    r"fps|ips|Hz|[KMGT]i?B|bytes?|[GTM]?FLOPS?)(?![A-Za-z0-9])"
)
_PER = (
    rf"[A-Za-z]*\s?(?:/|per)\s?(?:s|{_SECONDS}|ms|mins?|minutes?|h|hours?|it|iters?|iterations?|steps?|batch|epoch|"
    r"samples?|imgs?|images?|gpu)(?![A-Za-z])"
)
_QUANTITY = rf"(?:(?:\d+ days?, )?{_CLOCK}|{_NUM})(?:\s?(?:{_PER}|{_UNIT}))?"
_WORD = (
    r"time|times|timing|elapsed|took|takes|taken|duration|eta|etd|remaining|runtime|wall(?:[- ]?clock)?|clock|"
    r"speed|throughput|fps|ips|qps|latency|tflops|gflops|mfu|secs?|seconds|minutes|mins|hours|ms|timestamp|"
    r"(?:memory|mem|rss|vram)(?!_(?:bank|size))|pid|uuid|port|"
    r"(?:done|finished|completed?|ended|trained|training|ran|epoch)[^\d\n]{0,20} in|"
    rf"(?:[nmuµ]s|s|{_SECONDS}|mins?)/\w+"
)
# "Time for epoch 3: 12.5" is no time of 3.
_COUNTED = r"[^\d\n,;|]{0,24}?(?:epochs?|steps?|iter(?:ation)?s?|batch(?:es)?|fold|run)\W{0,3}\d+"
_AVERAGE = rf"(?:\s*\(\s*{_QUANTITY}\s*\))?"
_SPENT = (
    rf"{_NUM}\s?(?:{_PER}|{_UNIT})",
    rf"(?<![A-Za-z])(?:\w+_)?(?:{_WORD})(?![A-Za-z])(?:{_COUNTED})?[^\d\n,;|]{{0,24}}?{_QUANTITY}{_AVERAGE}",
    # How long the data took, as torch's example for ImageNet prints it.
    rf"(?<![A-Za-z])data(?:[_ ]time)?\s*[:=]?\s*{_NUM}\s*\(\s*{_NUM}\s*\)",
)

_LEFT_OUT = re.compile("|".join((*_TIMES, *_OWN, *_SPENT)), re.IGNORECASE)


def steady(text: str) -> str:
    """A text, such as a line or the name of a file, without what no two runs have in common."""
    return _LEFT_OUT.sub(OMITTED, text)
