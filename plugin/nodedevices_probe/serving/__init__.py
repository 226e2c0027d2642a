"""The probe server: what needs the hardware, in a container of its own, for an agent that has none (`serve`)."""
