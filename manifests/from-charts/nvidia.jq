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
  + each(""; ["namespaceOverride", "allowDefaultNamespace"]; {not: "ours is the release's"})
  + each(""; ["selectorLabelsOverride", "componentSelectorLabels"]; {not: "our selectors differ by component"})
  + each("image."; ["repository", "tag", "pullPolicy"]; {not: "NVIDIA's image; image.registry, image.tag and image.pullPolicy of ours"})
  + each(""; ["podSecurityContext", "securityContext"]; {not: "ours has no privilege"})
  + each("gfd."; ["nameOverride", "namespaceOverride", "securityContext", "enableHostNetwork"]; {not: "there is no such pod"})
  + each("gfd."; ["noTimestamp", "sleepInterval"]; {not: "labels follow changes"})
  + {
    "config.name": {}, "config.map": {}, "config.default": {}, "config.fallbackStrategies": {},
    "imagePullSecrets": {to: "imagePullSecrets"}, "podAnnotations": {to: "agent.podAnnotations"},
    "priorityClassName": {to: "agent.priorityClassName"},
    "updateStrategy.type": {to: "agent.updateStrategy.type"},
    "updateStrategy.rollingUpdate.maxUnavailable": {to: "agent.updateStrategy.maxUnavailable"},
    "updateStrategy.rollingUpdate.maxSurge": {not: "ours is 0"},
    "resources": {not: "they are for NVIDIA's program; set agent.resources of NodeDevices"},
    "nodeSelector": {not: "our agent runs on every Linux node, so it also serves the nodes that this value leaves out; agent.nodeSelector narrows that, or serving: {mode: Observe} of a DevicePolicy for them"},
    "affinity": {not: "our agent runs on every Linux node, so it also serves the nodes that this value leaves out; agent.nodeExpressions narrows that, or serving: {mode: Observe} of a DevicePolicy for them"},
    "tolerations": {not: "ours tolerates all"},
    "runtimeClassName": {}, "devicePlugin.containers.main.env": {}, "gfd.enabled": {}, "mps.root": {},
    "devicePlugin.enabled": {not: "components.observe decides who serves the kubelet"},
    "devicePlugin.enableHostNetwork": {not: "the API server is reached by its address"},
    "nfd": {not: "our agent needs no node-feature-discovery"},
    "mps.enableHostPID": {not: "the component mps has it"},
    "mps.enableHostNetwork": {not: "the daemons talk by sockets in a folder"}};

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
   | say("not taken: gfd.enabled: the operator sets its labels where a DevicePolicy says labels: {featureDiscovery: true}"),
     discovered_labels);

def notes: ["components.observe: NVIDIA's plugin goes on serving until a DevicePolicy takes nodes over (docs/migrate-from-nvidia.md)"];
