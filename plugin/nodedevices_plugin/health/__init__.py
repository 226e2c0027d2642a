"""Which devices are well: the state machine, its reasons, and rules by reason. It knows no vendor's numbers. Pure."""
