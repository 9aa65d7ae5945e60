"""What reads the GPUs: NVML in a child process, or a simulated host."""
