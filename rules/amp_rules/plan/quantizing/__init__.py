"""Where a script's trained model is made int8: :mod:`found` decides, and the other files answer its questions."""
