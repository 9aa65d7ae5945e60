"""`gpuward doctor`: looks at this host. The verdicts are in `agent.decide.doctor`."""
