"""What is judged about the runs of a verification: one file a check, each a pure function over traces.

A check has a stable ``ID``, which the documentation has a heading for, and a function ``check`` that gets all runs and
what was asked, and yields its statements: none where it does not apply, one for each level or run where it is about
several. Its docstring says what it shows, when it holds, and why the bounds are what they are.
"""

from amp_migrate.verify.checks import (
    band,
    buffers,
    carried,
    contents,
    draws,
    ending,
    files,
    files_together,
    in_half,
    in_order,
    meet,
    new_order,
    noise,
    o0_exact,
    o0_scaled,
    o1_together,
    one_process,
    printed,
    printed_together,
    ranks_agree,
    rates,
    repeats,
    runs,
    scaler_updates,
    shares,
    steering,
    sync_bn,
    together_exact,
)

CHECKS = (
    repeats,
    runs,
    o0_exact,
    buffers,
    o0_scaled,
    scaler_updates,
    printed,
    files,
    ending,
    band,
    in_half,
    together_exact,
    meet,
    ranks_agree,
    steering,
    shares,
    draws,
    contents,
    carried,
    noise,
    rates,
    in_order,
    new_order,
    sync_bn,
    one_process,
    o1_together,
    printed_together,
    files_together,
)
"""In the order in which their statements are read."""
