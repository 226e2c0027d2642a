# NVIDIA's device plugin's chart, v0.20.0 (docs/migrate-from-nvidia.md).
include "lib/migrate";
include "lib/nvidia-plugin";

def only_here: ["config", "migStrategy", "failOnInitError", "deviceListStrategy", "deviceIDStrategy", "nvidiaDriverRoot",
  "nvidiaDevRoot", "compatWithCPUManager", "deviceDiscoveryStrategy", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled",
  "allowDefaultNamespace", "selectorLabelsOverride", "componentSelectorLabels"];

def defaults: {};

# Its name -> the flag of our agent that is the same.
def flags: {
  "migStrategy": "mig-strategy", "failOnInitError": "fail-on-init-error", "deviceIDStrategy": "device-id-strategy",
  "deviceListStrategy": "device-list-strategy", "nvidiaDriverRoot": "driver-root", "nvidiaDevRoot": "dev-root",
  "deviceDiscoveryStrategy": "device-discovery-strategy", "gdrcopyEnabled": "gdrcopy-enabled",
  "gdsEnabled": "gds-enabled", "mofedEnabled": "mofed-enabled", "compatWithCPUManager": "pass-device-specs",
  "cdi.nvidiaHookPath": "nvidia-cdi-hook-path", "cdi.featureFlags": "cdi-feature-flags"};

def table:
  (flags | map_values({}))
  + each(""; ["nameOverride", "fullnameOverride"]; {not: "our names are nodedevices-*"})
  + each(""; ["namespaceOverride", "allowDefaultNamespace"]; {not: "NodeDevices uses the release's namespace"})
  + each(""; ["selectorLabelsOverride", "componentSelectorLabels"]; {not: "our selectors differ by component"})
  + each("image."; ["repository", "tag", "pullPolicy"]; {not: "NVIDIA's image; set image.registry, image.tag and image.pullPolicy of NodeDevices"})
  + each(""; ["podSecurityContext", "securityContext"]; {not: "our containers are not privileged"})
  + each("gfd."; ["nameOverride", "namespaceOverride", "securityContext", "enableHostNetwork"]; {not: "NodeDevices has no such pod"})
  + each("gfd."; ["noTimestamp", "sleepInterval"]; {not: "our labels follow changes at once"})
  + {
    "config.name": {}, "config.map": {}, "config.default": {}, "config.fallbackStrategies": {},
    "imagePullSecrets": {to: "imagePullSecrets"}, "podAnnotations": {to: "agent.podAnnotations"},
    "priorityClassName": {to: "agent.priorityClassName"},
    "updateStrategy.type": {to: "agent.updateStrategy.type"},
    "updateStrategy.rollingUpdate.maxUnavailable": {to: "agent.updateStrategy.maxUnavailable"},
    "updateStrategy.rollingUpdate.maxSurge": {not: "it is 0 for our agent"},
    "resources": {not: "they are for NVIDIA's program; set agent.resources of NodeDevices"},
    "nodeSelector": {not: "our agent runs on every Linux node, so it also serves the nodes that this value leaves out; to leave them out, set agent.nodeSelector, or serving: {mode: Observe} in a DevicePolicy for them"},
    "affinity": {not: "our agent runs on every Linux node, so it also serves the nodes that this value leaves out; to leave them out, set agent.nodeExpressions, or serving: {mode: Observe} in a DevicePolicy for them"},
    "tolerations": {not: "our agent tolerates all taints"},
    "runtimeClassName": {}, "devicePlugin.containers.main.env": {}, "gfd.enabled": {}, "mps.root": {},
    "devicePlugin.enabled": {not: "components.observe decides who serves the kubelet"},
    "devicePlugin.enableHostNetwork": {not: "the agent reaches the API server without it"},
    "nfd": {not: "our agent needs no node-feature-discovery"},
    "mps.enableHostPID": {not: "the component mps has it"},
    "mps.enableHostNetwork": {not: "the daemons use sockets in a folder"}};

def more:
  settings(flags),
  (.config.name | select(is_given) | configurations_elsewhere("config.name")),
  (.config.map | select(is_given) | configurations("config.map")),
  (.config | select((.name | is_given) or (.map | is_given))
   | {"default-config": .default, "fallback-strategies": .fallbackStrategies} | to_entries[]
   | select(.value | is_given) | set("agent.flags.\(.key)"; .value)),
  (select((.config.name | is_given) and (.config.map | is_given))
   | stop("config.name"; "given beside config.map: only one of them is in effect")),
  (.mps.root | mps_root),
  (.runtimeClassName | select(is_given) | set("components.runtimeClassNvidia"; {enabled: true, name: .})),
  (.devicePlugin.containers.main.env // [] | environment_of("devicePlugin.containers.main.env")),
  (select(.gfd.enabled == true)
   | say("not taken: gfd.enabled: the operator sets its labels if a DevicePolicy has labels: {featureDiscovery: true}"),
     discovered_labels);

def notes: ["components.observe: NVIDIA's plugin keeps serving until a DevicePolicy takes over nodes (docs/migrate-from-nvidia.md)"];
