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
    {not: "the GPU operator goes on with it"})
  + each("devicePlugin."; ["repository", "image", "version", "imagePullPolicy"];
    {not: "NVIDIA's image; image.registry, image.tag and image.pullPolicy of ours"})
  + each("gfd."; ["repository", "image", "version", "imagePullPolicy", "imagePullSecrets", "env", "args", "resources",
    "hostNetwork"]; {not: "there is no such pod"})
  + {
    "operator": {not: "the GPU operator's own; components.runtimeClassNvidia has its runtimeClass"},
    "migManager": {not: "mig-manager keeps running under the GPU operator and does not know our agent: docs/migrate-from-nvidia.md, With the GPU operator, says how to change MIG then"},
    "psa": {not: "you label the namespace of ours (manifests/chart/README.md)"},
    "platform.openshift": {}, "cdi.enabled": {}, "cdi.nriPluginEnabled": {}, "mig.strategy": {},
    "sandboxWorkloads.enabled": {}, "gpuCluster.deployCR": {}, "clusterPolicy.deployCR": {}, "gfd.enabled": {},
    "sandboxWorkloads.defaultWorkload": {not: "it counts with sandboxWorkloads.enabled"},
    "sandboxWorkloads.mode": {not: "it counts with sandboxWorkloads.enabled"},
    "hostPaths.rootFS": {not: "the GPU operator goes on with it"}, "hostPaths.driverInstallDir": {},
    "hostPaths.kubeletRootDir": {to: "kubelet.rootDir"},
    "daemonsets.labels": {to: "agent.podLabels"}, "daemonsets.annotations": {to: "agent.podAnnotations"},
    "daemonsets.priorityClassName": {to: "agent.priorityClassName"},
    "daemonsets.updateStrategy": {to: "agent.updateStrategy.type"}, "daemonsets.rollingUpdate.maxUnavailable": {},
    "daemonsets.tolerations": {not: "ours tolerates all"},
    "daemonsets.podSecurityContext": {not: "ours has no privilege"},
    "devicePlugin.enabled": {not: "components.observe decides who serves the kubelet"},
    "devicePlugin.imagePullSecrets": {}, "devicePlugin.env": {}, "devicePlugin.mps.root": {},
    "devicePlugin.config.create": {}, "devicePlugin.config.name": {}, "devicePlugin.config.default": {},
    "devicePlugin.config.data": {},
    "devicePlugin.args": {stop: "flags of NVIDIA's plugin: set those of the same names as agent.flags, with what goes with them (docs/migrate-from-nvidia.md, The chart's values)"},
    "devicePlugin.resources": {not: "they are for NVIDIA's program; set agent.resources of NodeDevices"},
    "devicePlugin.hostNetwork": {not: "the API server is reached by its address"}};

def more:
  (.hostPaths.driverInstallDir) as $driver
  | (.toolkit | if .enabled then "\(.installDir)/toolkit/nvidia-cdi-hook" else null end) as $hook
  | set("agent.flags.pass-device-specs"; true),  # as in the DaemonSet that it makes
    (.mig.strategy | select(is_given) | setting("mig.strategy"; "mig-strategy"; .)),
    (select(.driver.enabled == true)
     | setting("driver.enabled"; "driver-root"; $driver),
       stop("driver.enabled"; "the driver is a container, but on nodes that have one of their own, where \($driver) is wrong. Read /run/nvidia/validations/driver-ready on each node: NVIDIA_DRIVER_ROOT has to be that everywhere, and NVIDIA_DEV_ROOT, where it is another folder, becomes agent.flags.dev-root. Where all nodes have a driver of their own give driver: {enabled: false}")),
    (select(.cdi.enabled == true)
     | setting("cdi.enabled"; "device-list-strategy"; "cdi-annotations,cdi-cri"),
       ($hook | values | set("agent.flags.nvidia-cdi-hook-path"; .))),
    (if .cdi.nriPluginEnabled == true
     then stop("cdi.nriPluginEnabled"; "pods get the driver without a RuntimeClass then, which our agent needs another way for: docs/injection.md, Driver root and dev root, Without the nvidia runtime")
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
     | stop("sandboxWorkloads.enabled"; "GPUs for virtual machines (vfio) are not ours: leave nodes with nvidia.com/gpu.workload.config=vm-passthrough or vm-vgpu to the GPU operator, and keep our agent off them by agent.nodeExpressions")),
    (select(.gpuCluster.deployCR == true)
     | stop("gpuCluster.deployCR"; "GPUs are given by DRA then, and there is no device plugin to take over from")),
    (select(.clusterPolicy.deployCR == false)
     | stop("clusterPolicy.deployCR"; "the ClusterPolicy is not of these values: compare kubectl get clusterpolicies -o yaml"));

def notes: [
  "devicePlugin.enabled, gfd.enabled: NVIDIA's plugin goes on serving (components.observe) until a DevicePolicy takes nodes over; once all nodes are over set both to false there, and driver, toolkit, DCGM and MIG manager go on (docs/migrate-from-nvidia.md, With the GPU operator)"];
