"""What a changed DevicePolicy would do to the nodes of a cluster, from NodeDevices that were read or saved.

Nothing is decided here. The operator's own functions (nodedevices_operator.desired) say which configuration each node
would have, and the agent's own (nodedevices_plugin.offering) which ids follow from it, what the agent would refuse, and
which pods a change waits for. Only their layers without I/O are imported (docs/decisions/013, and a contract of
import-linter); a NodeDevices is read back as the agent's facts, and where what follows from these is not what the node
shows, no number is given.

    objects --> policies (as they are, as they would be) --> node by node: configuration, ids, faults --> plain values
"""
