"""The other generations of the API: TFKerasTrial, DeterminedCallback and `det.experimental.keras`."""
