"""nodedevices-mps: runs NVIDIA's MPS control daemons, in its own container with the privileges that they need.

In one direction: the agent writes the wanted daemons into a file of the MPS root (`records`), this program runs them
(`runner`), and the agent queries the daemons itself (`control.send`, as any client may). Neither waits for the other:
without a file there is nothing to do, and a daemon that died is started again.
"""
