"""What differs from one maker's devices to another's, behind one port: a folder for each vendor."""
