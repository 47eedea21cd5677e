"""`determined.experimental`, provided by det_keras."""
