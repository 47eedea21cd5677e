"""Compiles Horovod for the TensorFlow of this environment: ``python3 -m det_keras.launch.horovod_build``."""
