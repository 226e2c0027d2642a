"""Generic devices: whatever a configuration file says, as a vendor."""
