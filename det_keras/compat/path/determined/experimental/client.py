"""`determined.experimental.client` is not answered: the original's client drives a master from its own environment."""

raise ImportError(
    "det_keras has no `determined.experimental.client`. Install the original `determined` into an environment of its "
    "own and point it at the master (`det deploy local credentials`), or use `context.load_checkpoint_model(...)`."
)
