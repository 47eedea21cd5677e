"""`determined.launch`, provided by det_keras."""
