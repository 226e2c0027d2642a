"""nodedevices-mps: runs NVIDIA's MPS control daemons, in its own container with the privileges that they need.

One direction: the agent writes which daemons are wanted into a file of the MPS root (`wanted`), this program makes it
so (`runner`), and the agent queries the daemons itself (`control.send`, as any client may). Neither
waits for the other: a file that is not there is nothing to do, and a daemon that died is started again.
"""
