"""Gpuward's command line, with the rig's engine in place of the product's: `python -P -m rig.gpuward`.

Controllers know the rig's args, and agents start the rig's program for `engine: simulated`. All else is the product.
"""

import sys
from unittest import mock

from agent.processes import spawn
from cli.main import main
from rig.simulated_args import known_here

ENGINE = (sys.executable, "-P", "-m", "rig.engine")

if __name__ == "__main__":
    with known_here(), mock.patch.object(spawn, "SIMULATED_ENGINE", ENGINE):
        main()
