"""The kubelet's own messages: device plugin v1beta1 and PodResources v1.

The `.proto` files are vendored (each names its source and version) and the `*_pb2.py*` modules are generated from them
by `python -m nodedevices_plugin.kubelet.api.generate`; both are committed, so that installing needs no compiler. The
files lie under unique names because two files both called api.proto clash in protobuf's pool. Only messages are
generated: the methods are in `kubelet.rpc`, typed, which also keeps the modules free of a minimum grpcio version.
"""
