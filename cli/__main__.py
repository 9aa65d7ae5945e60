"""`python -m cli`, for when the `gpuward` command is not on the path."""

from cli.main import main

main()
