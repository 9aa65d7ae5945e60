"""The gateway of Gpuward: owns the public address, answers `/v1` by replicas, passes all else to the controller."""
