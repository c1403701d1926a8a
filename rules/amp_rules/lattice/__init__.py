"""Types, intervals and provenance: the abstract machine that runs PyTorch code in one mode.

Layers, each importing only those above it:

``mode``               in which the code is judged
``abstract_values``    type set, interval, provenance, and the operation that made a value
``parameter_names``    what the names of parameters say
``operation_names``    the names of torch's operations, types, layers and constructors, by kind
``intervals``          the intervals of what operations give
``torch_operations``   what an operation of torch does to an abstract value in a mode
``variable_uses``      how a function uses its variables
``known_values``       what is kept of files that are met again
``half_precision``     what becomes of an operation in half precision; rewrites ask it too
``parameter_types``    what a function's own text says of the types of its parameters
``parameter_flow``     what flows into a parameter: a question to the points-to analysis
``frame``              a function while it is run, and what its evaluators ask of the machine
``observer``           who is shown operations; a lint rule is one
``paths``              states that observers keep along the ways through a function, told apart by the tests on them
``conditions``         what tests say of types
``binding``            elements of what holds several values, and what gets a name
``expression_evaluators``
                       run expressions
``result_evaluators``  what conversions, factories and parts give
``torch_calls``, ``project_calls``, ``layer_calls``, ``builtin_calls``
                       what calls of each kind give
``call_evaluators``, ``statement_runners``
                       run Python's constructs
``autocast_switches``  decorators and helpers that turn autocast on or off
``callers``            what all calls of a function give to it: findings that none brings about are dropped
``given_types``        what one call of a function gives to it: findings that it brings about are added
``machine_state``, ``inline_calls``, ``attributes``
                       what the machine holds, calls of functions in line, what classes and modules hold
``machine``            runs functions for their findings; puts the evaluators together

It knows neither rules nor findings: those stand on it, in :mod:`amp_rules.lint` and :mod:`amp_rules.checks`.
"""
