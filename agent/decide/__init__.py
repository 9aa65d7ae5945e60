"""Pure decisions: on a command, on adoption after a restart, and on a process's health."""
