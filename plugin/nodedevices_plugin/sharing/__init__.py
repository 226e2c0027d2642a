"""Sharing: how several containers have one device. The port is in base.py, and each mode is its own file.

    none            devices are handed out whole
    time_slicing    shares without isolation: the ids of a device are multiplied, and nothing else
    mps             NVIDIA's Multi-Process Service: one control daemon a resource runs the clients of its GPUs
    memory          a share is an amount of one device's memory; grant is what a container has of it, and each other
                    file what it gets for that

`registry` has a place for each mode; `resources` asks the mode by which a resource is shared, `helpers` says what the
modes of a plan await on the node, and `clients` which containers lost something when it ended. Outside of this folder a
mode is a name in the configuration, and a value that a resource has with it. What talks to the world for a mode (for
MPS: host/mps_daemons.py and the program in mps/) is wired in host/sharing_managers.py.
"""
