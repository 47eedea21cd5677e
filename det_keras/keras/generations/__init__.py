"""The other generations of scripts: TFKerasTrial, DeterminedCallback and `det.experimental.keras`."""
