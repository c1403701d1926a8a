"""What a reviewer looks at: one page, or the description of a pull request.

:func:`amp_migrate.report.html.render_html` makes the page and needs the extra ``report``;
:func:`amp_migrate.report.markdown.render_markdown` needs nothing besides. Both take a
:class:`amp_migrate.report.pages.Migration`, and the evidence of a verification where there is one.
"""
