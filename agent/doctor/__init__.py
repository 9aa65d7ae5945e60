"""`gpuward doctor`: examines this host. The verdicts are in `agent.decide.doctor`."""
