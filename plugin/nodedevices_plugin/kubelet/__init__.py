"""Everything that talks to the kubelet, and nothing that knows what a GPU is.

plugins.py        DevicePlugins: a plan in, one served and registered resource each
registration.py   one resource: serve, register, notice when that is lost, do it again
server.py         the v1beta1 answers of one resource on its own unix socket
podresources.py   who holds what: the client;  holders.py: what its answers and the checkpoint show
sockets.py        names and identities of unix sockets, and a server on one
rpc.py            the kubelet's methods, typed;  api/ its messages, generated
"""
