# AMD's device plugin's chart (amd-gpu), at ROCm/k8s-device-plugin ed76468, with its node labeller.
include "lib/migrate";

def only_here: ["dp", "lbl", "labeller", "node_selector", "node_selector_enabled"];

def defaults: {"dp": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}};

def table:
  each("dp.image."; ["repository", "tag"]; {not: "AMD's image; image.registry and image.tag of ours"})
  + {
    "dp.resources": {not: "they are for AMD's program; set agent.resources of NodeDevices"},
    "dp.updateStrategy.type": {to: "agent.updateStrategy.type"},
    "dp.updateStrategy.rollingUpdate.maxUnavailable": {to: "agent.updateStrategy.maxUnavailable"},
    "dp.updateStrategy.rollingUpdate.maxSurge": {not: "ours is 0"},
    "lbl": {not: "there is no such pod"}, "labeller.enabled": {},
    "nfd": {not: "our agent needs no node-feature-discovery"},
    "imagePullSecrets": {to: "imagePullSecrets"},
    "securityContext": {not: "ours has no privilege"}, "tolerations": {not: "ours tolerates all"},
    "node_selector_enabled": {not: "our agent runs on every Linux node; agent.nodeSelector narrows that"},
    "node_selector": {not: "our agent runs on every Linux node; agent.nodeSelector narrows that"}};

def more:
  set("components.hostDev.enabled"; true), set("components.allGpus.enabled"; true),
  set("components.amdExporter.enabled"; true),  # its chart mounts that folder in any case
  (select(.labeller.enabled == true)
   | policy("gpu-feature-discovery"; {nodeSelector: {}, labels: {featureDiscovery: true}}),
     say("labeller.enabled: the operator sets the labels vram, cu-count, simd-count and device-id of amd.com/gpu and beta.amd.com/gpu; not taken: amd.com/gpu.family and beta.amd.com/gpu.family, so change the nodeSelectors of pods that have these first (docs/devices/amd.md, Labels)"));

def notes: [
  "not a value there: with an argument -resource_naming_strategy mixed of your own, a DevicePolicy with partitions: {strategy: mixed} is the same (docs/devices/amd.md)",
  "components.observe: AMD's plugin goes on serving until a DevicePolicy takes nodes over (docs/devices/amd.md, Coming from AMD's device plugin)"];
