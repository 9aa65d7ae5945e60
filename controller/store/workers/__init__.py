"""Workers: sessions, phases, devices, heartbeats, maintenance."""
