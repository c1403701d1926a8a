"""Types, intervals and provenance: the abstract machine that runs PyTorch code in one mode.

Layers, each importing only those above it:

``mode``               in which the code is judged
``abstract_values``    type set, interval, provenance, and the operation that made a value
``parameter_names``    what the names of parameters say
``torch_operations``   what an operation of torch does to an abstract value in a mode
``known_values``       what is kept of files that are met again
``half_precision``     what becomes of an operation in half precision; rewrites ask it too
``parameter_flow``     what flows into a parameter: a question to the points-to analysis
``frame``              a function while it is run, and what its evaluators ask of the machine
``observer``           who is shown operations; a lint rule is one
``paths``              states that observers keep along the ways through a function, told apart by the tests on them
``conditions``         what tests say of types
``expression_evaluators``
                       run expressions
``call_evaluators``, ``statement_runners``
                       run Python's constructs
``callers``            what the calls of a function in its file give to it
``machine``            runs functions, remembers classes, calls functions in line; puts the evaluators together

It knows neither rules nor findings: those stand on it, in :mod:`amp_rules.lint` and :mod:`amp_rules.checks`.
"""
