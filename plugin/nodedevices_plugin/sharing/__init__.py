"""Sharing: how several containers have one device. The port is in base.py.

    registry        the modes; those that need nothing but the kubelet: whole, time slices, shared by nature
    mps             NVIDIA's Multi-Process Service: one control daemon a resource runs the clients of its GPUs
    memory          a share is an amount of one device's memory

`daemons` says which MPS daemons a plan needs and whether they answer, and which containers lost something when one
ended. Outside of this folder a mode is a name in the configuration, and a value that a resource has with it. What talks
to the world for MPS is host/mps_daemons.py and the program in mps/.
"""
