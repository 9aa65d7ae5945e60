"""The gateway: owns the public address, answers `/v1` by the models' replicas, passes all else to the controller."""
