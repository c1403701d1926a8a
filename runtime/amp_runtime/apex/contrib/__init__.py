"""Parts of ``apex.contrib`` that have an equivalent in torch."""
