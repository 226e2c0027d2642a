// Only says where the module begins: Go reads ../kube/1.37.mod in its place. Built for the default Kubernetes alone, by
// whose internal functions it goes.
module nodedevices.io/tests/cluster/devicemanager
