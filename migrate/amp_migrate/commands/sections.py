"""``--help`` with the options in sections: what is done, how, what is printed and written, and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

OTHER = "Other options"
_OTHERS = ("config", "stdin_filename", "version")


class SectionedCommand(click.Command):
    """A command that shows its options in sections.

    Attributes:
        sections: the names of the parameters in each section; those in none stand in the first one.
    """

    sections: Mapping[str, Sequence[str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, its options in the order in which they are declared."""
        home = {name: title for title, names in self.sections.items() for name in names}
        first = next(iter(self.sections), OTHER)
        found: dict[str, list[tuple[str, str]]] = {title: [] for title in (*self.sections, OTHER)}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                title = OTHER if param.name in _OTHERS or "--help" in param.opts else home.get(param.name or "", first)
                found[title].append(record)
        # One column for all, so that the eye can run down the page.
        width = min(max((len(term) for rows in found.values() for term, _ in rows), default=0), 30)
        for title, rows in found.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([(f"{term:<{width}}", text) for term, text in rows])
