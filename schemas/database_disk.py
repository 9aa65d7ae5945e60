"""The disk of the database: reason codes, and the text of refusals."""

from typing import Final

DATABASE_FULL: Final = "database_full"
DATABASE_DISK_LOW: Final = "database_disk_low"
# The text of errors of writes without space. Logs drop lines with it, since the disk has its own line.
DATABASE_FULL_TEXT: Final = (
    "the disk of the database is full, so nothing is written; free space there, and everything continues by itself"
)
