"""What an administrator may allow operators to write in a deployment."""

from enum import StrEnum


class Grant(StrEnum):
    """A kind of power over the host that a deployment can hold. Operators need it granted; administrators have all."""

    COMMAND = "command"  # a program of the user's own
    CODE = "code"  # flags that load or run code that does not come with the engine
    HOST_FILES = "host_files"  # flags that read or write files of the host
    ENVIRONMENT = "environment"  # variables that load code into a process or send it elsewhere
