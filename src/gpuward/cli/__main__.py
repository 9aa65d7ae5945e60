"""`python -m gpuward.cli`, where the `gpuward` command is not on the path."""

from gpuward.cli.main import main

main()
