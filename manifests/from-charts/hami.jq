# HAMi's chart, v2.10.0, at Project-HAMi/HAMi 4707fb0: NVIDIA's GPUs in it (docs/migrate-from-gpushare.md).
include "lib/migrate";
include "lib/nvidia-plugin";

def only_here: ["scheduler", "schedulerName", "resourceName", "resourceMem", "resourceMemPercentage", "resourceCores",
  "resourcePriority", "mockDevicePlugin", "devices", "device-config", "legacyMetrics", "podSecurityPolicy", "prometheus"];

def defaults: {
  "devicePlugin": {"deviceListStrategy": "envvar", "migStrategy": "none", "passDeviceSpecsEnabled": false,
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
    "nvidiaNodeSelector": {"gpu": "on"}},
  "scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "spread"}}};

# Its name -> the flag of our agent that is the same.
def flags: {
  "devicePlugin.migStrategy": "mig-strategy", "devicePlugin.passDeviceSpecsEnabled": "pass-device-specs",
  "devicePlugin.deviceListStrategy": "device-list-strategy", "devicePlugin.nvidiaHookPath": "nvidia-cdi-hook-path",
  "devicePlugin.nvidiaDriverRoot": "driver-root", "devicePlugin.gdrcopyEnabled": "gdrcopy-enabled",
  "devicePlugin.gdsEnabled": "gds-enabled", "devicePlugin.mofedEnabled": "mofed-enabled"};

def its_scheduler: "HAMi's scheduler and webhook serve the nodes that HAMi still has, and are removed with its chart; the cluster's own scheduler places pods that request our resources, optionally with components.extenderScheduler or extenderHost";
def other_devices: "our agent shares NVIDIA's GPUs by memory, offers AMD's GPUs whole (components.allHardware), and does not know this vendor: keep HAMi's chart for such nodes, with devicePlugin.enabled=false";
def its_limits: "HAMi limits a container to its memory and cores with a library in the container (libvgpu.so); NodeDevices includes no such library: set sharing.resources[].enforcement: mps, or use your own library (docs/migrate-from-gpushare.md, Isolation)";
def its_monitor: "HAMi's own monitor; docs/metrics.md lists our metrics";

def table:
  (flags | map_values({}))
  + each(""; ["nameOverride", "fullnameOverride"]; {not: "our names are nodedevices-*"})
  + each(""; ["namespaceOverride"]; {not: "NodeDevices uses the release's namespace"})
  + each("global."; ["imageRegistry", "imageTag"]; {not: "HAMi's images; set image.registry and image.tag of NodeDevices"})
  + each("global."; ["annotations", "managedNodeSelectorEnable", "managedNodeSelector"]; {not: "for HAMi's own objects"})
  + each(""; ["resourceName", "resourceMem", "resourceMemPercentage", "resourceCores", "resourcePriority"];
    {not: "pods on our nodes request nodedevices.io/gpu-memory in units of 256Mi, with cores as an annotation, or a whole nvidia.com/gpu; there is no replacement for a percentage of the memory, two shared GPUs in one container, and priorities (docs/migrate-from-gpushare.md, HAMi)"})
  + each(""; ["mluResourceName", "mluResourceMem", "mluResourceCores", "dcuResourceName", "dcuResourceMem",
    "dcuResourceCores", "metaxResourceName", "metaxResourceCore", "metaxResourceMem", "metaxsGPUTopologyAware",
    "enflameResourceNameDRSGCU", "enflameResourceNameGCUMemory", "enflameResourceNameGCUCore", "kunlunResourceName",
    "kunlunResourceVCountName", "kunlunResourceVMemoryName", "vastaiResourceName", "birenResourceName"]; {not: other_devices})
  + each("devices."; ["amd", "awsneuron", "kunlun", "enflame", "mthreads", "vastai", "biren"]; {not: other_devices})
  + each("devices.ascend."; ["image", "imagePullPolicy", "extraArgs", "nodeSelector", "tolerations", "runtimeClassName",
    "hamiVnpuCore", "customresources"]; {not: other_devices})
  + each("devices.iluvatar."; ["customresources"]; {not: other_devices})
  + each("devices.nvidia."; ["gpuCorePolicy", "libCudaLogLevel"]; {not: its_limits})
  + each("devicePlugin."; ["disablecorelimit", "libPath"]; {not: its_limits})
  + each("global."; ["gpuHookPath"]; {not: its_limits})
  + each("scheduler."; ["nodeName", "nodeLabelSelector", "metricsBindAddress", "forceOverwriteDefaultScheduler",
    "livenessProbe", "leaderElect", "replicas", "kubeScheduler", "extender", "nodeLockExpire", "podAnnotations",
    "tolerations", "serviceAccountName", "admissionWebhook", "certManager", "patch", "service",
    "defaultSchedulerPolicy.nodeSchedulerPolicy"]; {not: its_scheduler})
  + each(""; ["schedulerName"]; {not: its_scheduler})
  + each("scheduler."; ["defaultMem", "defaultCores"];
    {stop: "with NodeDevices a container must request its memory: add a request to pods that have none"})
  + each("devicePlugin.image."; ["registry", "repository", "tag", "pullPolicy"]; {not: "HAMi's images; set image.registry and image.tag of NodeDevices"})
  + each("devicePlugin."; ["hostPID", "hostNetwork", "securityContext"]; {not: "our containers are not privileged"})
  + each("devicePlugin."; ["monitor", "service"]; {not: its_monitor})
  + {
    "global.imagePullSecrets": {}, "global.labels": {to: "commonLabels"},
    "podSecurityPolicy": {not: "Kubernetes no longer has it"}, "legacyMetrics": {not: its_monitor},
    "mockDevicePlugin": {not: "it only adds resource names to nodes for HAMi's scheduler"},
    "prometheus.enabled": {}, "devices.ascend.enabled": {}, "devices.iluvatar.enabled": {},
    "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": {}, "scheduler.overwriteEnv": {},
    "device-config.content": {stop: "it replaces resource names and settings of every vendor: compare its part about NVIDIA's GPUs with docs/migrate-from-gpushare.md, HAMi"},
    "devicePlugin.enabled": {not: "components.observe decides who serves the kubelet"},
    "devicePlugin.gpuOperatorToolkitReady": {not: "our agent waits for the driver by itself"},
    "devicePlugin.image.pullSecrets": {}, "devicePlugin.deviceMemoryScaling": {}, "devicePlugin.deviceCoreScaling": {},
    "devicePlugin.deviceSplitCount": {not: "memory alone limits how many containers share a GPU; under MPS 48"},
    "devicePlugin.enableNumaTopology": {}, "devicePlugin.preConfiguredDeviceMemory": {},
    "devicePlugin.nodeConfiguration.config": {},
    "devicePlugin.nodeConfiguration.externalConfigName": {stop: "settings of single nodes in your own ConfigMap: write a DevicePolicy with a nodeSelector for each group of them (docs/sharing-memory.md)"},
    "devicePlugin.runtimeClassName": {}, "devicePlugin.createRuntimeClass": {}, "devicePlugin.extraArgs": {},
    "devicePlugin.extraEnvs": {}, "devicePlugin.pluginPath": {},
    "devicePlugin.podAnnotations": {to: "agent.podAnnotations"}, "devicePlugin.nvidiaNodeSelector": {},
    "devicePlugin.tolerations": {not: "our agent tolerates all taints"},
    "devicePlugin.updateStrategy.type": {to: "agent.updateStrategy.type"},
    "devicePlugin.updateStrategy.rollingUpdate.maxUnavailable": {to: "agent.updateStrategy.maxUnavailable"},
    "devicePlugin.updateStrategy.rollingUpdate.maxSurge": {not: "it is 0 for our agent"},
    "devicePlugin.resources": {not: "they are for HAMi's program; set agent.resources of NodeDevices"}};

def is_example: (try (fromjson | [.nodeconfig[].name]) catch ["?"]) | unique | . == [] or . == ["your-node-name"];
def scale($name): .devicePlugin[$name] | select(is_given and (tonumber? // 0) != 1);

def more:
  (.scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy) as $gpu_policy
  | {name: "nvidia.com/gpu", memoryUnit: "256Mi", cores: true} as $entry
  | ($entry
     + (if $gpu_policy == "spread" then {packing: "spread"} else {} end)
     + (if .devicePlugin.enableNumaTopology == true then {numa: true} else {} end)) as $entry
  | settings(flags),
    policy("gpushare"; {nodeSelector: {matchLabels: {"nodedevices.io/takeover": "gpushare"}}, serving: {mode: "Serve"},
      sharing: {strategy: "memory", resources: [$entry]}}),
    policy("whole-gpus"; {nodeSelector: {matchLabels: {"nodedevices.io/takeover": "whole-gpus"}}, serving: {mode: "Serve"}}),
    (select($gpu_policy | IN("spread", "binpack", null, "") | not)
     | stop("scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy"; "shares are packed: binpack, or packing: spread in the policy; the distance between GPUs only counts for whole GPUs (docs/placement.md)")),
    (select(.scheduler.overwriteEnv | tostring == "true")
     | stop("scheduler.overwriteEnv"; "its webhook hides GPUs from pods that request none; NodeDevices has no webhook: docs/injection.md, Which one, says how to block NVIDIA_VISIBLE_DEVICES=all of an image")),
    (scale("deviceMemoryScaling")
     | stop("devicePlugin.deviceMemoryScaling"; "shares cannot exceed a GPU's real memory; memoryReserve in the policy keeps memory out of the shares")),
    (scale("deviceCoreScaling")
     | stop("devicePlugin.deviceCoreScaling"; "a GPU has 100 percent: cores of a policy cannot exceed that")),
    (.devicePlugin.preConfiguredDeviceMemory | select(is_given and . != 0)
     | stop("devicePlugin.preConfiguredDeviceMemory"; "a GPU that does not report its memory is not divided by memory: leave such nodes out of the policy gpushare")),
    (.devicePlugin.nodeConfiguration.config | select(is_given and (is_example | not))
     | stop("devicePlugin.nodeConfiguration.config"; "settings of single nodes: write a DevicePolicy with a nodeSelector for each group of them (docs/sharing-memory.md); filterdevices becomes devices in the policy")),
    (.devicePlugin.runtimeClassName | select(is_given)
     | set("components.runtimeClassNvidia"; {enabled: true, name: .}),
       say("devicePlugin.runtimeClassName: HAMi's webhook sets it on pods with HAMi's resources; pods that request our resources must set it themselves, unless it is the nodes' default runtime")),
    (select(.devicePlugin.createRuntimeClass == true)
     | stop("devicePlugin.createRuntimeClass"; "that RuntimeClass belongs to HAMi's chart, and our agent's pods need it: keep it, or create it another way, before you uninstall that chart")),
    (.devicePlugin.extraArgs | select(is_given and any(.[]; test("^-v=") | not))
     | stop("devicePlugin.extraArgs"; "flags of HAMi's plugin: look up each flag in docs/flags.md")),
    (.devicePlugin.extraEnvs | select(is_given) | environment_of("devicePlugin.extraEnvs")),
    (.devicePlugin.pluginPath | select(is_given and . != "/var/lib/kubelet/device-plugins")
     | stop("devicePlugin.pluginPath"; "the kubelet's folder of device plugins is /var/lib/kubelet/device-plugins for our agent; for another folder set kubelet.rootDir")),
    ([.global.imagePullSecrets, .devicePlugin.image.pullSecrets | select(is_given)[]] | select(. != [])
     | set("imagePullSecrets"; references | unique)),
    (select(.prometheus.enabled == true) | set("components.prometheus.enabled"; true)),
    (("ascend", "iluvatar") as $vendor | select(.devices[$vendor].enabled == true)
     | stop("devices.\($vendor).enabled"; other_devices)),
    (.devicePlugin.nvidiaNodeSelector | select(is_given)
     | say("devicePlugin.nvidiaNodeSelector: a node moves from HAMi to NodeDevices by its labels, with THEIRS=\(to_entries[0] | "\(.key)=\(.value)") in docs/migrate-from-gpushare.md, Names and functions"));

def notes: [
  "not taken: limits of memory and cores: \(its_limits)",
  "components.observe: HAMi keeps serving until you drain nodes and take them over one by one (docs/migrate-from-gpushare.md); cores of the policy need a right of the agent: apply the ClusterRole of docs/sharing-memory.md, Shares of computing power"];
