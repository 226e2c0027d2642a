# NVIDIA's GPU operator's chart, v26.7.0. Of its parts our agent and operator replace the device plugin and
# gpu-feature-discovery; the others go on.
include "lib/migrate";
include "lib/nvidia-plugin";

def only_here: ["operator", "daemonsets", "driver", "toolkit", "validator", "hostPaths", "migManager", "dcgm", "dcgmExporter",
  "clusterPolicy", "gpuCluster", "node-feature-discovery", "sandboxWorkloads", "nodeStatusExporter", "vgpuManager",
  "mig", "psa", "platform", "gds", "gdrcopy", "ccManager", "vfioManager", "sandboxDevicePlugin"];

def defaults: {
  "cdi": {"enabled": true}, "mig": {"strategy": "single"}, "driver": {"enabled": true}, "gfd": {"enabled": true},
  "toolkit": {"enabled": true, "installDir": "/usr/local/nvidia"}, "operator": {"runtimeClass": "nvidia"},
  "hostPaths": {"driverInstallDir": "/run/nvidia/driver"},
  "daemonsets": {"priorityClassName": "system-node-critical", "updateStrategy": "RollingUpdate",
    "rollingUpdate": {"maxUnavailable": "1"}}};

def table:
  each(""; ["validator", "driver", "toolkit", "dcgm", "dcgmExporter", "nodeStatusExporter", "vgpuManager",
    "vgpuDeviceManager", "vfioManager", "kataManager", "sandboxDevicePlugin", "kataSandboxDevicePlugin", "ccManager",
    "draDriver", "nfd", "node-feature-discovery", "extraObjects", "gds", "gdrcopy"];
    {not: "the GPU operator keeps managing it"})
  + each("devicePlugin."; ["repository", "image", "version", "imagePullPolicy"];
    {not: "NVIDIA's image; set image.registry, image.tag and image.pullPolicy of NodeDevices"})
  + each("gfd."; ["repository", "image", "version", "imagePullPolicy", "imagePullSecrets", "env", "args", "resources",
    "hostNetwork"]; {not: "NodeDevices has no such pod"})
  + {
    "operator": {not: "the GPU operator's own; components.runtimeClassNvidia has its runtimeClass"},
    "migManager": {not: "mig-manager keeps running under the GPU operator and does not know our agent: docs/migrate-from-nvidia.md, With the GPU operator, says how to change MIG then"},
    "psa": {not: "you label the namespace of NodeDevices (manifests/chart/README.md)"},
    "platform.openshift": {}, "cdi.enabled": {}, "cdi.nriPluginEnabled": {}, "mig.strategy": {},
    "sandboxWorkloads.enabled": {}, "gpuCluster.deployCR": {}, "clusterPolicy.deployCR": {}, "gfd.enabled": {},
    "sandboxWorkloads.defaultWorkload": {not: "it only matters with sandboxWorkloads.enabled"},
    "sandboxWorkloads.mode": {not: "it only matters with sandboxWorkloads.enabled"},
    "hostPaths.rootFS": {not: "the GPU operator keeps managing it"}, "hostPaths.driverInstallDir": {},
    "hostPaths.kubeletRootDir": {to: "kubelet.rootDir"},
    "daemonsets.labels": {to: "agent.podLabels"}, "daemonsets.annotations": {to: "agent.podAnnotations"},
    "daemonsets.priorityClassName": {to: "agent.priorityClassName"},
    "daemonsets.updateStrategy": {to: "agent.updateStrategy.type"}, "daemonsets.rollingUpdate.maxUnavailable": {},
    "daemonsets.tolerations": {not: "our agent tolerates all taints"},
    "daemonsets.podSecurityContext": {not: "our containers are not privileged"},
    "devicePlugin.enabled": {not: "components.observe decides who serves the kubelet"},
    "devicePlugin.imagePullSecrets": {}, "devicePlugin.env": {}, "devicePlugin.mps.root": {},
    "devicePlugin.config.create": {}, "devicePlugin.config.name": {}, "devicePlugin.config.default": {},
    "devicePlugin.config.data": {},
    "devicePlugin.args": {stop: "flags of NVIDIA's plugin: set the same names in agent.flags, with what they need (docs/migrate-from-nvidia.md, The chart's values)"},
    "devicePlugin.resources": {not: "they are for NVIDIA's program; set agent.resources of NodeDevices"},
    "devicePlugin.hostNetwork": {not: "the agent reaches the API server without it"}};

def more:
  (.hostPaths.driverInstallDir) as $driver
  | (.toolkit | if .enabled then "\(.installDir)/toolkit/nvidia-cdi-hook" else null end) as $hook
  | set("agent.flags.pass-device-specs"; true),  # as in the DaemonSet that it makes
    (.mig.strategy | select(is_given) | setting("mig.strategy"; "mig-strategy"; .)),
    (select(.driver.enabled == true)
     | setting("driver.enabled"; "driver-root"; $driver),
       stop("driver.enabled"; "the driver is a container, except on nodes that have their own driver, where \($driver) is wrong. Read /run/nvidia/validations/driver-ready on each node: NVIDIA_DRIVER_ROOT must be \($driver) everywhere; if NVIDIA_DEV_ROOT is another folder, set agent.flags.dev-root to it. If all nodes have their own driver, give driver: {enabled: false}")),
    (select(.cdi.enabled == true)
     | setting("cdi.enabled"; "device-list-strategy"; "cdi-annotations,cdi-cri"),
       ($hook | values | set("agent.flags.nvidia-cdi-hook-path"; .))),
    (if .cdi.nriPluginEnabled == true
     then stop("cdi.nriPluginEnabled"; "pods then get the driver without a RuntimeClass, and our agent needs another way: docs/injection.md, Driver root and dev root, Without the nvidia runtime")
     else .operator.runtimeClass | select(is_given) | set("components.runtimeClassNvidia"; {enabled: true, name: .}) end),
    (select(.gds.enabled == true) | set("agent.flags.gds-enabled"; true), set("agent.flags.mofed-enabled"; true)),
    (select(.gdrcopy.enabled == true) | set("agent.flags.gdrcopy-enabled"; true)),
    (.daemonsets.rollingUpdate.maxUnavailable | select(is_given)
     | set("agent.updateStrategy.maxUnavailable"; tonumber? // .)),
    (.devicePlugin.imagePullSecrets | select(is_given) | set("imagePullSecrets"; references)),
    (.devicePlugin.config | select(.name | values | is_given)
     | if .create == true and (.data | is_given) then .data | configurations("devicePlugin.config.data")
       else .name | configurations_elsewhere("devicePlugin.config.name") end),
    (.devicePlugin.config | select((.name | values | is_given) and (.default | is_given))
     | set("agent.flags.default-config"; .default)),
    (.devicePlugin.mps.root | mps_root),
    (.devicePlugin.env // [] | environment_of("devicePlugin.env")),
    (select(.gfd.enabled == true) | discovered_labels),
    (select(.platform.openshift == true) | set("components.openshift.enabled"; true)),
    (select(.sandboxWorkloads.enabled == true)
     | stop("sandboxWorkloads.enabled"; "NodeDevices does not serve GPUs for virtual machines (vfio): leave nodes with nvidia.com/gpu.workload.config=vm-passthrough or vm-vgpu to the GPU operator, and keep our agent off them with agent.nodeExpressions")),
    (select(.gpuCluster.deployCR == true)
     | stop("gpuCluster.deployCR"; "DRA then gives GPUs to pods, and there is no device plugin to take over from")),
    (select(.clusterPolicy.deployCR == false)
     | stop("clusterPolicy.deployCR"; "the ClusterPolicy does not come from these values: compare them with kubectl get clusterpolicies -o yaml"));

def notes: [
  "devicePlugin.enabled, gfd.enabled: NVIDIA's plugin keeps serving (components.observe) until a DevicePolicy takes over nodes; after all nodes are taken over, set both to false there: driver, toolkit, DCGM and MIG manager keep running (docs/migrate-from-nvidia.md, With the GPU operator)"];
