"""Examples have no deadline: on a busy machine one may take long."""

from hypothesis import settings

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")
