"""The kubelet's side of Dynamic Resource Allocation: `prepare` answers for claims, `driver` serves and registers.

Sources: k8s.io/kubelet 0.37.2, pkg/apis/dra/v1 and pkg/apis/pluginregistration/v1; pkg/kubelet/cm/dra of Kubernetes
1.37.2.
"""
