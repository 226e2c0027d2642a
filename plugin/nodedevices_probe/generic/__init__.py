"""Any device that has a node in /dev, or is a USB device, by a configuration file."""
