"""The health of devices: the state machine, its reasons, and rules by reason. It knows no vendor's numbers."""
