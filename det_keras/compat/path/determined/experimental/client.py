"""`determined.experimental.client` is not provided: the original's client controls a master from its own package."""

raise ImportError(
    "det_keras has no `determined.experimental.client`. Install the original `determined` into an environment of its "
    "own and point it at the master (`det deploy local credentials`), or use `context.load_checkpoint_model(...)`."
)
