// Only says where the module begins: Go reads 1.37.mod in its place, or that of another Kubernetes (../rig/versions.py).
module nodedevices.io/tests/cluster/kube

go 1.26.8
