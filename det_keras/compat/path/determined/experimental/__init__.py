"""`determined.experimental`, answered by det_keras."""
