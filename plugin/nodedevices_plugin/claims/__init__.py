"""Dynamic Resource Allocation (DRA, `resource.k8s.io/v1`): what a node publishes, and what a claim gets. No I/O.

A device that DRA serves is in a ResourceSlice instead of the device plugin's list. The scheduler allocates it to a
ResourceClaim, and the kubelet has the driver prepare the claim before a container starts. These modules decide: the
`slices` of a node, with the attributes and taints of its devices, what a claim says and what was prepared for it
(`records`), what a claim gets of its `devices`, from which plan it is answered (`offer`), and what the container
runtime is given for it (`cdi_file`).
"""
