"""`nodedevices-operator extender`: the scheduler learns on which nodes one GPU has room for a pod's shares of memory.

The scheduler knows the sum of a node's shares; a container's are of one GPU. So before it chooses a node it sends the
names of those that are left here (filter), and gets back those of which one GPU has room; then how full each GPU would
be (prioritize). Nothing is written, there is no leader election, and any number of these may run: the kubelet allocates
and is the guard, and what is not known here (no NodeDevices, a stale one, watches that do not run) passes.

    shares      shared devices of a NodeDevices, requests of a pod   pure
    table       what is free on a node, and whether a pod fits       pure
    cache       all of these by node, from the watches
    verbs       filter and prioritize; inspect: who has what
    reflector   list and watch of one kind; server: HTTP; settings; main
"""
