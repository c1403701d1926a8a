"""Jupyter notebooks: their code cells as one Python text, and the way back into the file.

``reading``   a notebook taken apart
``ipython``   lines that are IPython's and not Python's
``jsontext``  replacing the text of cells, and not another byte
``cells``     which line of the joined text belongs to which cell
``source``    a notebook as a source file that can be migrated
"""
