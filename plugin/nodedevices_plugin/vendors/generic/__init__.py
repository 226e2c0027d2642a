"""Generic devices, as a configuration file describes them, as a vendor."""
