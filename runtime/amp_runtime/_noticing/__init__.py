"""What went wrong in a run and no exception has told."""
