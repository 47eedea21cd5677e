"""`context.fit`: Keras's own `model.fit`, called for each part of a training between two borders."""
