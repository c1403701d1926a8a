"""The command line of amp-lint: which files, which rules, in which mode, and how the findings are shown.

The analysis itself is :mod:`amp_rules.lint`. Layers, each importing only those above it:

``catalogue``    what the front end knows of the rules
``selection``    which of them are asked
``settings``     defaults, ``[tool.amp-lint]``, the command line
``diagnostics``  a finding as it is stored and shown: with its lines of source, and its place in a notebook
``suppress``     ``# amp: ignore`` and ``# noqa``
``patches``      a fix as replacements of text
``cache``        what an earlier run found
``timelimit``    a bound on the time for one file
``analysis``     one file
``workers``      many files, on several cores
``baseline``     findings that are known already
``runner``       all of it
``formats``      how a run is printed, one format a file
``tracing``      findings found again in a changed text
``fixing``       mending files
``pages``        ``--explain`` and ``--list-rules``
``command``      what is done with the options
``cli``          the options
"""
