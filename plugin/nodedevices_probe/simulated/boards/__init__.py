"""What the devices of each maker are like, as their real probes report them: a file for each, data mostly."""
