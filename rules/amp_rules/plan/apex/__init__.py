"""Older interfaces for mixed precision, NVIDIA Apex first of all: where a project uses them, and taking them out.

Scripts that train with Apex are brought to plain FP32 first, as they run with Apex switched off, with the runtime's
``init`` and ``prepare_model`` where ``amp.initialize`` was. The ordinary migration then adds autocast and the scaler.
Where the whole project cannot be understood that way, only the imports change, to the runtime's drop-in for Apex.
Scripts that use ``torch.cuda.amp`` are brought up to date and keep their scaler.
"""
