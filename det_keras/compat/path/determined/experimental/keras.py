"""`determined.experimental.keras`, provided by det_keras."""
