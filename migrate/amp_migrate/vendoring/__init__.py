"""The copy of the runtime beside a script: what is reached, what it says, and how it grows."""
