"""What differs from one maker's devices to another's, behind one port (base): a module or a folder for each vendor."""
