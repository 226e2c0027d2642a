# The real Kubernetes that tests and demo run on, and the images that run there. tests/cluster/README.md explains.

NAME    ?= default
NODES   ?= 2
TAG     ?= 0.1.0
RIG     := PYTHON=$(PYTHON) tests/cluster/cluster
ROOT    := $(shell id -u)
# Which Kubernetes; empty: the default of rig/versions.py.
KUBERNETES ?=
export KUBERNETES
ifneq ($(KUBERNETES),)
ifeq ($(wildcard tests/cluster/kube/$(KUBERNETES).mod),)
$(error KUBERNETES=$(KUBERNETES): there is $(sort $(patsubst tests/cluster/kube/%.mod,%,$(wildcard tests/cluster/kube/1.*.mod))))
endif
endif

.PHONY: cluster-programs
cluster-programs: $(VENV)/.stamp
	@PYTHON=$(PYTHON) tests/cluster/tools
	@$(RIG) build

.PHONY: root
root: # before anything is built that could not be used
	@[ "$(ROOT)" = 0 ] || [ -n "$(REGISTRY)" ] || { echo "This needs root: real kubelets make namespaces, mounts and cgroups. Try: sudo make $(MAKECMDGOALS)"; exit 1; }

.PHONY: cluster-tools
cluster-tools: cluster-programs ## What tests and make cluster-up need beside Kubernetes: helm, Prometheus, our images
	@$(RIG) tools > /dev/null
	@PYTHONPATH=tests $(RUN)/python -m support.device_manager > /dev/null
	@[ "$(ROOT)" != 0 ] || $(RIG) images > /dev/null

.PHONY: cluster-up
cluster-up: root cluster-programs ## A Kubernetes of two nodes on this machine, with our images on it (NAME=, NODES=, KUBERNETES=)
	@$(RIG) up --name "$(NAME)" --nodes "$(NODES)" --images

.PHONY: cluster-down
cluster-down: ## Remove every trace of it (NAME=)
	@$(RIG) down --name "$(NAME)"

.PHONY: images
ifeq ($(REGISTRY),)
images: cluster-programs ## Build both images for the test cluster; REGISTRY=host/team TAG=0.1.0: for yours, and push
	@$(RIG) images
else
images:
	@$(RIG) images --registry $(REGISTRY) --tag $(TAG)
endif

.PHONY: demo
demo: root $(VENV)/.stamp ## See it work: a cluster, devices, a fault, and what NodeDevices reports about it (KEEP=1)
	@PYTHONPATH=tests $(RUN)/python -m demo

.PHONY: demo-on
demo-on: $(VENV)/.stamp ## The same on a cluster on your desk: CLUSTER=kind, k3d, minikube, kind-NAME or k3d-NAME (KEEP=1); no root
	@PYTHONPATH=tests $(RUN)/python -m demo --on "$(CLUSTER)"

.PHONY: e2e
e2e: root cluster-tools ## Only the tests on real clusters, of KUBERNETES=1.32, 1.34, 1.36 or 1.37 (MARK=long: those of test-all)
	@$(RUN)/python -m pytest tests/e2e -m "$(MARK)" -n 3 --dist loadscope --no-loadscope-reorder --durations=10

.PHONY: alerts
alerts: cluster-programs ## Prometheus with our alerts beside the cluster of KUBECONFIG, and a line for each change (HOLD=5s)
	@PYTHONPATH=tests HOLD="$(HOLD)" $(RUN)/python -m demo.alerts

.PHONY: chaos
chaos: root cluster-programs ## Everything that can go wrong, at random, on the real cluster (SECONDS=, SEED=, STEPS=)
	@PYTHONPATH=tests SECONDS="$(SECONDS)" SEED="$(SEED)" STEPS="$(STEPS)" NAME="$(NAME:default=chaos)" $(RUN)/python -m chaos

.PHONY: soak
soak: root cluster-programs ## Whether memory, files, threads and queues of our parts stay flat under load (HOURS=, SEED=)
	@PYTHONPATH=tests HOURS="$(HOURS)" SEED="$(SEED)" NAME="$(NAME:default=soak)" $(RUN)/python -m chaos.soak
