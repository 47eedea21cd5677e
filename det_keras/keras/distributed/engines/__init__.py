"""Engines carry tensors and objects between workers; each is one file behind the contract in `base.py`."""
