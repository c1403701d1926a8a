"""In several processes rank 0 prints what the original prints, about all samples, and no other rank prints anything.

Training in N processes takes 1/N as many steps of N-fold batches, so the numbers of a trained model are others than the
original's. What can be held against each other:

- The sentences. Rank 0 prints those of the original. One that depends on the number of steps or on a measured number,
  and that so is printed more or less often, is left out.
- The original on the joined batches of all ranks makes the same steps with the same samples, so it prints the same
  numbers as rank 0: counts equal, others within ``--tolerance`` and the scatter of the number from line to line, where
  the losses of the two agree. A number that is 1/N of it is one of a rank's share of the data. Where steps draw random
  numbers (dropout), a count of evaluated samples may be apart by twice what chance makes of it, and another number that
  all ranks agree on by twice the tolerance.
- The runtime keeps the other ranks silent, and the recorder knows what they would have printed. A number that all
  ranks agree on is about all of them. One that they do not agree on, and whose sum over the ranks is the original's
  within 5 % each time it is printed, is one of a rank's share; printed once this may be chance and is left open.
- A whole number that is 1/N of the original's and is the number of samples that the rank has read is one of its share;
  so is no number of batches, steps or calls, which is 1/N in each rank rightly.

- After an evaluation whose samples the ranks share, a number that they agree on is printed.

A rank's own estimate of a mean over its training, such as the loss of its last batch, counts as one where the mean over
the ranks is that of one process. So are counts in a line that is printed within a pass, such as "[128/512]", those of a
rank, and left out. A script that was written for several
processes is compared with itself in several, rank by rank, where its training repeats to the last bit.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from statistics import mean

from amp_migrate.out.terminal import plural
from amp_migrate.verify import printed
from amp_migrate.verify.checks.common import Traces, first_rank, keeps_its_own, relative, together
from amp_migrate.verify.checks.counts import ends_of_passes, is_of_samples, is_of_steps, shared_evaluations
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.checks.number_series import Series, aligned, is_quotient
from amp_migrate.verify.checks.outputs import common_part, quoted, reach, where
from amp_migrate.verify.checks.pairing import mean_losses
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL, ORIGINAL_AGAIN, ORIGINAL_MERGED, ORIGINAL_TOGETHER, Asked
from amp_migrate.verify.printed import last_digit, value
from amp_migrate.verify.traces import RankTrace

ID = "together-printed"

_EXACT, _SUM = 0.02, 0.05
"""How near a number has to be to 1/N of the same steps' number, and the sum over the ranks to the original's."""
_LEAST = 1e-6

# A model that is printed has a wrapper, and batch norms of another class.
_OF_A_MODEL = re.compile(r"(?:\(\w+\): )?\w+\(.*\)?$|\)$")

Finding = tuple[Verdict, str]


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare what the ranks print with what the original prints."""
    ranks = together(traces)
    if not ranks or not traces[ORIGINAL].usable:
        return
    title = f"Rank 0 of {len(ranks)} prints what the original prints"
    if keeps_its_own(traces, asked):
        yield from _as_before(traces, f"{len(ranks)} processes print what those of the original print")
        return
    comparison = _Comparison(traces, ranks, asked)
    findings = list(comparison.findings())
    for verdict in ("disproved", "unproved"):
        for found, message in findings:
            if found == verdict:
                yield Check(ID, title, found, message)
                return
    if comparison.right:
        yield Check(ID, title, "proved", comparison.summary())


def _as_before(traces: Traces, title: str) -> Iterator[Check]:
    right, other = traces.get(ORIGINAL_TOGETHER), traces[O0_TOGETHER]
    if right is None or not right.usable or reach(right) != reach(other):
        return
    count = 0
    for rank, (one, two) in enumerate(zip(right.ranks, other.ranks, strict=False)):
        if first_difference(one, two) is not None:
            return
        lines = printed.printed_by(right, rank), printed.printed_by(other, rank)
        count += len(lines[0])
        difference = printed.first_difference(*lines)
        if difference is not None:
            message = (
                f"Process {rank} prints {quoted(difference.other)} where that of the original prints "
                f"{quoted(difference.right)}{where(difference.right, difference.other)}."
            )
            # What the original prints in several processes from run to run is not known, unless it is silent there.
            yield Check(ID, title, "unproved" if lines[0] else "disproved", message)
            return
    if count:
        yield Check(ID, title, "proved", f"{plural(count, 'line').capitalize()} are those of the original's processes.")


class _Comparison:
    """The lines of all runs side by side."""

    def __init__(self, traces: Traces, ranks: Sequence[RankTrace], asked: Asked) -> None:
        self.run, self.original = traces[O0_TOGETHER], traces[ORIGINAL]
        self.ranks, self.asked = ranks, asked
        self.size = len(ranks)
        self.traces = traces
        # Both at their ends they have printed all that they print.
        self.whole = self.run.status == self.original.status == "ended"
        self.right = printed.printed_by(self.original)
        self.mine = printed.printed_by(self.run)
        self.others = [printed.kept_back_by(rank) for rank in ranks[1:]]
        merged = traces.get(ORIGINAL_MERGED)
        usable = merged if merged is not None and merged.usable else None
        self.joined = common_part(usable, self.run)[0] if usable is not None else []
        self.series = list(aligned(self.right if self.whole else [], self.mine, self.joined, self.others))
        again = traces.get(ORIGINAL_AGAIN)
        pair = common_part(self.original, again) if again is not None and again.usable else ([], [])
        self.unsteady = printed.unsteady(*pair)
        self.ends = ends_of_passes(ranks[0])
        self.compared = self.left_out = 0

    def findings(self) -> Iterator[Finding]:
        """What speaks against it."""
        yield from self._other_ranks()
        yield from self._sentences()
        for series in self.series:
            found = self._judged(series)
            if found is not None:
                yield found
        yield from self._shared_evaluations()

    def summary(self) -> str:
        """What was compared."""
        lines = f"{plural(len(self.right), 'line')} of output {'holds' if len(self.right) == 1 else 'hold'}"
        left = (
            f"; {plural(self.left_out, 'number')} of steps, or of a rank's own batches, are left out"
            if self.left_out
            else ""
        )
        return f"{lines} {plural(self.compared, 'number')} about all samples, and no other rank prints{left}."

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _other_ranks(self) -> Iterator[Finding]:
        known = {line.sentence for line in self.right}
        for number in range(1, self.size):
            lines = printed.printed_by(self.run, number)
            again = next((line for line in lines if line.sentence in known), None)
            if again is not None:
                # Of a version that somebody else made nothing promises that the others are silent.
                is_ours = "amp" in self.ranks[number].events or self.asked.target == "torch"
                verdict: Verdict = "disproved" if is_ours else "unproved"
                message = f"Rank {number} prints {quoted(again)}{where(None, again)}, which the original prints once."
                yield verdict, f"{message} Let rank 0 alone print."
                return

    def _sentences(self) -> Iterator[Finding]:
        right, mine = ({line.sentence for line in lines} for lines in (self.right, self.mine))
        if right and not right & mine:
            said = "nothing" if not mine else f"{quoted(self.mine[0])}"
            yield (
                "disproved",
                f"Rank 0 prints {said}, and not one line of the original's, such as {quoted(self.right[0])}.",
            )
            return
        # Before the first step nothing has been measured that a line could depend on.
        missing, added = (
            [
                line
                for line in lines
                if line.before == 0 and line.sentence not in known and not _OF_A_MODEL.match(line.raw)
            ]
            for lines, known in ((self.right, mine), (self.mine, right))
        )
        if missing:
            yield "unproved", f"Rank 0 does not print {quoted(missing[0])}{where(missing[0], None)} before it trains."
        elif added:
            yield "unproved", f"Rank 0 prints {quoted(added[0])}{where(None, added[0])}, which the original does not."

    # ---- numbers -------------------------------------------------------------------------------------------------

    def _judged(self, series: Series) -> Finding | None:
        self.compared += 1
        if series.mine == series.right:
            return None
        # "[128/512]" within a pass is how far this rank has come.
        within = series.are_counts and any(end is not None and end not in self.ends for _, end in series.ends)
        unsteady = (series.line.sentence, series.place) in self.unsteady
        if within or unsteady or not (series.right or series.joined):
            self._leave_out()
            return None
        found = self._share_of_steps(series) or self._share_of_sum(series) or self._share_of_count(series)
        if found is not None:
            return found
        if series.are_counts and series.others and not series.agree:
            message = f"Rank 0 prints {quoted(series.line)}{where(series.before, series.line)}, and other ranks have"
            return "unproved", f"{message} another number in place of {series.mine[0]}: it may count one rank's share."
        of_its_line = [one for one in self.series if one.line is series.line]
        if is_quotient(series, of_its_line):
            return None
        if series.joined and not self._is_near(series) and self._trains_alike():
            message = (
                f"Rank 0 prints {quoted(series.line)}{where(series.before, series.line)}, and one process on the same "
                f"samples {series.joined[0]} in place of {series.mine[0]}."
            )
            return "unproved", f"{message} That is more than --tolerance allows."
        if not series.agree and not series.joined:
            self._leave_out()
        return None

    def _leave_out(self) -> None:
        self.compared -= 1
        self.left_out += 1

    def _shared_evaluations(self) -> Iterator[Finding]:
        """Evaluations whose samples the ranks share, and after which no number is printed that they agree on."""
        for end in sorted(shared_evaluations(self.ranks)):
            shown = [series for series in self.series if any(before == end for _, before in series.ends)]
            own = [series for series in shown if series.others and not series.agree and not series.are_counts]
            if not own:
                continue
            message = (
                f"The ranks share the samples of an evaluation, and rank 0 prints {quoted(own[0].line)}"
                f"{where(own[0].before, own[0].line)} about its own. Average it over the ranks."
            )
            agreed = [series for series in shown if series.agree and not series.are_counts]
            yield "unproved" if agreed else "disproved", message
            return

    def _share_of_steps(self, series: Series) -> Finding | None:
        """A number that is 1/N of what one process prints after the same steps on the same samples."""
        mine = series.mine[: len(series.joined)]
        if not self._is_share(mine, series.joined, _EXACT) or _near(mine, series.right[: len(mine)], _EXACT):
            return None
        return "disproved", self._words(series, series.joined[0], "one process on the same samples")

    def _share_of_sum(self, series: Series) -> Finding | None:
        """A number that ranks do not agree on, and whose sum is the original's."""
        if not series.others or series.agree or not series.right:
            return None
        totals = [sum(map(value, column)) for column in zip(series.mine, *series.others, strict=True)]
        pairs = [(total, value(right)) for total, right in zip(totals, series.right, strict=True)]
        if not all(abs(right) >= _LEAST and abs(total - right) <= _SUM * abs(right) for total, right in pairs):
            return None
        joined = series.mine[: len(series.joined)], series.joined
        if len(pairs) > 1 and not _near(*joined, _EXACT):
            return "disproved", self._words(series, series.right[0], "the original")
        return "unproved", f"{self._words(series, series.right[0], 'the original')} It may be chance."

    def _share_of_count(self, series: Series) -> Finding | None:
        """A whole number that is 1/N of the original's."""
        if not series.right or not series.are_counts or not self._is_share(series.mine, series.right, _SUM):
            return None
        original, mine = self.original.ranks[0], self.ranks[0]
        facts = list(zip(series.right, series.mine, series.ends, strict=True))
        if all(
            is_of_samples(original, value(one), ends[0]) and is_of_samples(mine, value(two), ends[1])
            for one, two, ends in facts
        ):
            return "disproved", self._words(series, series.right[0], "the original")
        if series.joined and series.mine[: len(series.joined)] == series.joined:
            return None
        if all(
            is_of_steps(original, value(one), ends[0]) and is_of_steps(mine, value(two), ends[1])
            for one, two, ends in facts
        ):
            return None
        return "unproved", f"{self._words(series, series.right[0], 'the original')} What it counts is not known."

    def _is_share(self, mine: Sequence[str], right: Sequence[str], bound: float) -> bool:
        pairs = [(value(one), value(two)) for one, two in zip(mine, right, strict=False) if one != two or value(one)]
        return bool(pairs) and all(
            abs(two) > _LEAST and abs(one * self.size - two) <= bound * abs(two) for one, two in pairs
        )

    def _is_near(self, series: Series) -> bool:
        """Whether the numbers, or their means over the ranks, are those of the same steps in one process."""
        mine = [mean(map(value, column)) for column in zip(series.mine, *series.others, strict=True)]
        joined = list(map(value, series.joined))
        scatter = max((abs(one - two) for one, two in itertools.pairwise(joined)), default=0.0)
        for one, two, written in zip(mine, joined, series.mine, strict=False):
            # A sum over the batches of all ranks is N times that over the joined batches.
            apart = min(abs(one - factor * two) for factor in (1, self.size))
            allowed = self.asked.tolerance * max(abs(one), abs(two)) + scatter + last_digit(written)
            if self._draws and not self._is_nearer_to_a_share(one, two):
                if series.may_count:
                    allowed += 2 * math.sqrt(abs(one) + abs(two))
                elif series.agree:
                    allowed += self.asked.tolerance * max(abs(one), abs(two))
            if apart > allowed and not _near((written,), series.right[:1], self.asked.tolerance):
                return False
        return True

    @property
    def _draws(self) -> bool:
        """Whether steps draw random numbers: other weights, with which a count of samples comes out as another one."""
        return any(step.random for step in self.ranks[0].backwards)

    def _is_nearer_to_a_share(self, mine: float, joined: float) -> bool:
        return abs(mine * self.size - joined) <= abs(mine - joined)

    def _trains_alike(self) -> bool:
        """Whether the losses are those of one process on the same samples, so that what is measured has to agree."""
        merged = first_rank(self.traces, ORIGINAL_MERGED)
        if merged is None:
            return False
        pairs = zip(mean_losses(self.ranks), merged.backwards, strict=False)
        return all(relative(step.loss, other.loss) <= self.asked.tolerance for step, other in pairs)

    def _words(self, series: Series, right: str, who: str) -> str:
        return (
            f"Rank 0 prints {quoted(series.line)}{where(series.before, series.line)}, where {who} prints {right} in "
            f"place of {series.mine[0]}: it is 1/{self.size}, a number of one rank's share of the data. Sum it over "
            "the ranks."
        )


def _near(mine: Sequence[str], right: Sequence[str], bound: float) -> bool:
    """Whether all numbers are there and agree."""
    pairs = [(value(one), value(two)) for one, two in zip(mine, right, strict=False)]
    return bool(pairs) and all(abs(one - two) <= bound * max(abs(one), abs(two)) for one, two in pairs)
