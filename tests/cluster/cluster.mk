# The real Kubernetes that tests and demo run on, and the images that run there. tests/cluster/README.md explains.

NAME    ?= default
NODES   ?= 2
TAG     ?= 0.1.0
CLUSTER := PYTHON=$(PYTHON) tests/cluster/cluster
ROOT    := $(shell id -u)

.PHONY: cluster-programs
cluster-programs: $(VENV)/.stamp
	@PYTHON=$(PYTHON) tests/cluster/tools
	@$(CLUSTER) build

.PHONY: root
root: # before anything is built that could not be used
	@[ "$(ROOT)" = 0 ] || [ -n "$(REGISTRY)" ] || { echo "This needs root: real kubelets make namespaces, mounts and cgroups. Try: sudo make $(MAKECMDGOALS)"; exit 1; }

.PHONY: cluster-tools
cluster-tools: cluster-programs
	@[ "$(ROOT)" != 0 ] || $(CLUSTER) images > /dev/null

.PHONY: cluster-up
cluster-up: root cluster-programs ## A Kubernetes of two nodes on this machine, with our images on it (NAME=, NODES=)
	@$(CLUSTER) up --name "$(NAME)" --nodes "$(NODES)" --images

.PHONY: cluster-down
cluster-down: ## Remove every trace of it (NAME=)
	@$(CLUSTER) down --name "$(NAME)"

.PHONY: images
ifeq ($(REGISTRY),)
images: cluster-programs ## Build both images for the test cluster; REGISTRY=host/team TAG=0.1.0: for yours, and push
	@$(CLUSTER) images
else
images:
	@$(CLUSTER) images --registry $(REGISTRY) --tag $(TAG)
endif

.PHONY: demo
demo: root cluster-programs ## See it work: a cluster, devices, a fault, and what NodeDevices reports about it (KEEP=1)
	@PYTHONPATH=tests $(RUN)/python -m demo

.PHONY: alerts
alerts: cluster-programs ## Prometheus with our alerts beside the cluster of KUBECONFIG, and a line for each change (HOLD=5s)
	@PYTHONPATH=tests HOLD="$(HOLD)" $(RUN)/python -m demo.alerts
