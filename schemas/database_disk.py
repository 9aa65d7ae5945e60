"""The disk of the database: the codes of what is wrong with it, and the words of the refusals that follow."""

from typing import Final

DATABASE_FULL: Final = "database_full"
DATABASE_DISK_LOW: Final = "database_disk_low"
# The text of each error of a write that found no space. Logs leave out lines with it: one line speaks for all.
DATABASE_FULL_TEXT: Final = (
    "the disk of the database is full, so nothing is written; free space there, and everything continues by itself"
)
