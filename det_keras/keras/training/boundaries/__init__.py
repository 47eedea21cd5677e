"""What a training does between two batches: boundary callbacks, each with one task; `base` defines their contract."""
