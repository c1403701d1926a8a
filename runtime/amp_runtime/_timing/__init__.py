"""``amp.StepTimer``: what a training step costs, why it waits, and how that looks."""
