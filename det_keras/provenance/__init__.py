"""Where a run comes from: the command, the machine, the packages and the repository, as plain JSON values.

No environment variable is captured. A capture never raises: what cannot be read is left out.

Importing `det_keras.provenance.capture` costs little. The other modules are imported on the thread of the capture.
"""
