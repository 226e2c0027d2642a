"""What the kernel's log says of devices that other probes list."""
