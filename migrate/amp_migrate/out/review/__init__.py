"""The formats that review tools read, for both commands: annotations of GitHub, SARIF, and reviewdog's rdjson.

Each command turns what it found into :class:`amp_migrate.out.review.remark.Remark`; a format is one module, which knows
nothing else.
"""
