"""Edits, and how they are carried out on the text of a file."""
