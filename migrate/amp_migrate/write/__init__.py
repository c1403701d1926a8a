"""Writing over a project and taking it back: all files or none."""
