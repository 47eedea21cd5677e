"""All private names of Keras and TensorFlow that the package uses, one function for each use.

The exceptions are methods that a subclass overrides: `_inputs` of a dataset in `data/base.py`.

There is no public way to make the batches that plain Keras makes from arrays or generators, to write the weights file
of a model piece by piece, or to read the states that `set_random_seed` sets. The versions are those in which the names
were checked; a change there is fixed here.
"""
