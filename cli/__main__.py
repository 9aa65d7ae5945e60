"""`python -m cli`, where the `gpuward` command is not on the path."""

from cli.main import main

main()
