"""Half precision by hand: a model made half, float32 copies of its parameters, a loss scale of the script's own.

Such a script is brought to the plain float32 program that it is with its flag off. The ordinary migration then adds
autocast and the scaler, and the flag chooses the level. What is not understood as a whole stays as it is.
"""
