"""Through which variable each trained model is prepared, and where in its life.

:mod:`homes` decides, and the other files answer its questions: what is a part of another model (:mod:`holders`), which
variables a model has (:mod:`variables`), and behind which statement it is complete (:mod:`placement`, :mod:`wrapping`).
"""
