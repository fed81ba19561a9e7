"""What runs where a model is compiled: the only code that imports tinygrad; it ships as a zipapp.

It imports nothing from the rest of `rules`, so that a device needs only Python, numpy and a tinygrad tree.
"""
