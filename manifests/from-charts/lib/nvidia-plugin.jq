# What the charts share whose plugin is NVIDIA's, or descends from it: the same settings, variables and files.
include "lib/migrate";

# Variables of its container that our agent knows by the same name and meaning, and those that are its own.
def variables: ["DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS", "SHARED_DEVICES_ALLOCATION_POLICY",
  "CDI_DISABLE_HOOKS", "IMEX_CHANNEL_IDS", "IMEX_REQUIRED", "NVIDIA_DEV_ROOT", "CDI_ANNOTATION_PREFIX"];
def own_variables: ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"];
# Variables that are a flag of ours, which its chart has values for.
def flag_variables: {
  "MIG_STRATEGY": "mig-strategy", "FAIL_ON_INIT_ERROR": "fail-on-init-error", "NVIDIA_DRIVER_ROOT": "driver-root",
  "PASS_DEVICE_SPECS": "pass-device-specs", "DEVICE_LIST_STRATEGY": "device-list-strategy",
  "DEVICE_ID_STRATEGY": "device-id-strategy", "GDRCOPY_ENABLED": "gdrcopy-enabled", "GDS_ENABLED": "gds-enabled",
  "MOFED_ENABLED": "mofed-enabled", "NVIDIA_CDI_HOOK_PATH": "nvidia-cdi-hook-path",
  "CDI_FEATURE_FLAGS": "cdi-feature-flags", "DEVICE_DISCOVERY_STRATEGY": "device-discovery-strategy"};

def truth: if . == "true" then true elif . == "false" then false else . end;
def words: if type == "string" then split(",") | map(gsub("^\\s+|\\s+$"; "")) else . end;
def without_comments: split("\n") | map(sub("(^|\\s)#.*$"; "")) | join("\n");
def by_cdi: "containers get their GPUs by CDI. The specification with the driver's libraries is made by NVIDIA's image; ours has no nvidia-ctk. Check that each node has the container toolkit's own (/etc/cdi/nvidia.yaml or /var/run/cdi/nvidia.yaml), or one of the other two ways: docs/injection.md, CDI";

# A setting of the plugin as our flag, with the components that it needs; $name: of the value that it comes from.
def setting($name; $flag; $value):
  if $flag == "device-list-strategy" then
    ($value | words) as $strategies
    | set("agent.flags.device-list-strategy"; $strategies),
      if any($strategies[]; startswith("cdi-")) then set("components.cdi.enabled"; true), stop($name; by_cdi) else empty end
  else
    set("agent.flags.\($flag)"; $value | truth),
    if $flag == "mig-strategy" and $value != "none" then set("components.mig.enabled"; true) else empty end,
    if $flag == "driver-root" and $value != "/" then set("components.driverRoot"; {enabled: true, path: $value}) else empty end,
    if $flag == "device-discovery-strategy" and $value == "tegra" then stop($name; "tegra is not implemented") else empty end
  end;

# Names of values -> flags, as settings; for the charts that have these values.
def settings($flags):
  . as $values | $flags | to_entries[] | . as $one
  | $values | at($one.key) | select(is_given) | setting($one.key; $one.value; .);

# The variables of its container, a list, of the value $name.
def environment($name):
  .[]
  | if flag_variables[.name] then .name as $variable | .value | setting($name; flag_variables[$variable]; .)
    elif .name == "MPS_ROOT" then set("components.mps.root"; .value)
    elif .name | IN(variables[]) then {env: .}
    elif .name | IN(own_variables[]) then empty
    else stop(.name; "our agent does not know a variable of this name") end;
# The same, with variables of ours in one list.
def environment_of($name):
  [environment($name)] | (.[] | select(has("env") | not)),
  ([.[].env | values] | select(. != []) | set("agent.env"; .));

# Configuration files, name -> text, of the value $name.
def configurations($name):
  [.[] | without_comments] as $texts
  | set("components.namedConfigs"; {enabled: true, configs: .}),
    (select(any($texts[]; test("cdi-(cri|annotations)")))
     | set("components.cdi.enabled"; true), stop($name; by_cdi)),
    (select(any($texts[]; test("migStrategy[\"']?\\s*:\\s*[\"']?(single|mixed)"))) | set("components.mig.enabled"; true)),
    (select(any($texts[]; test("(^|[\\s{,\"'])mps[\"']?\\s*:"))) | set("components.mps.enabled"; true));
# A ConfigMap of that name has them.
def configurations_elsewhere($name):
  set("components.namedConfigs.enabled"; true),
  say("\($name): our agent reads the ConfigMap device-plugin-configs of its namespace: copy \(.) there, and check whether its files use MPS (components.mps), MIG (components.mig) or CDI (components.cdi)");

def mps_root: select(is_given and . != "/run/nvidia/mps") | set("components.mps.root"; .);
def discovered_labels: policy("gpu-feature-discovery"; {nodeSelector: {}, labels: {featureDiscovery: true}});
