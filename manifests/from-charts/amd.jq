# AMD's device plugin's chart (amd-gpu), at ROCm/k8s-device-plugin ed76468, with its node labeller.
include "lib/migrate";

def only_here: ["dp", "lbl", "labeller", "node_selector", "node_selector_enabled"];

def defaults: {"dp": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}};

def table:
  each("dp.image."; ["repository", "tag"]; {not: "AMD's image; set image.registry and image.tag of NodeDevices"})
  + {
    "dp.resources": {not: "they are for AMD's program; set agent.resources of NodeDevices"},
    "dp.updateStrategy.type": {to: "agent.updateStrategy.type"},
    "dp.updateStrategy.rollingUpdate.maxUnavailable": {to: "agent.updateStrategy.maxUnavailable"},
    "dp.updateStrategy.rollingUpdate.maxSurge": {not: "it is 0 for our agent"},
    "lbl": {not: "NodeDevices has no such pod"}, "labeller.enabled": {},
    "nfd": {not: "our agent needs no node-feature-discovery"},
    "imagePullSecrets": {to: "imagePullSecrets"},
    "securityContext": {not: "our containers are not privileged"}, "tolerations": {not: "our agent tolerates all taints"},
    "node_selector_enabled": {not: "our agent runs on every Linux node; agent.nodeSelector restricts it"},
    "node_selector": {not: "our agent runs on every Linux node; agent.nodeSelector restricts it"}};

def more:
  set("components.allHardware.enabled"; true),  # its chart mounts that folder in any case
  (select(.labeller.enabled == true)
   | policy("gpu-feature-discovery"; {nodeSelector: {}, labels: {featureDiscovery: true}}),
     say("labeller.enabled: the operator sets the labels vram, cu-count, simd-count and device-id of amd.com/gpu and beta.amd.com/gpu; not taken: amd.com/gpu.family and beta.amd.com/gpu.family; first change the nodeSelectors of pods that use these (docs/devices/amd.md, Labels)"));

def notes: [
  "not a value of that chart: if you gave the argument -resource_naming_strategy mixed, a DevicePolicy with partitions: {strategy: mixed} is the same (docs/devices/amd.md)",
  "components.observe: AMD's plugin keeps serving until a DevicePolicy takes over nodes (docs/devices/amd.md, Coming from AMD's device plugin)"];
