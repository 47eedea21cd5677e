"""`determined.launch`, answered by det_keras."""
