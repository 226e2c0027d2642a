# The settings of NVIDIA's device plugin, as its DaemonSet has them, for our agent. Pure: reads nothing, writes nothing.
#
# In: the DaemonSet; $maps, the ConfigMaps of its volumes; $reviewed, names that a person has looked at.
# Out: patch (for our DaemonSet), configs (file name -> text, or null), components, say (sentences: what was taken, and
# why) and stop (sentences: what is not understood, each with the name by which $reviewed passes it).

# What our agent knows by the same name and meaning.
def known:
  ["MIG_STRATEGY", "FAIL_ON_INIT_ERROR", "NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT", "PASS_DEVICE_SPECS",
   "DEVICE_LIST_STRATEGY", "DEVICE_ID_STRATEGY", "GDRCOPY_ENABLED", "GDS_ENABLED", "MOFED_ENABLED",
   "CDI_ANNOTATION_PREFIX", "NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH", "CDI_FEATURE_FLAGS", "CDI_DISABLE_HOOKS",
   "MPS_ROOT", "SHARED_DEVICES_ALLOCATION_POLICY", "DEVICE_DISCOVERY_STRATEGY", "IMEX_CHANNEL_IDS", "IMEX_REQUIRED",
   "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS", "DEFAULT_CONFIG", "FALLBACK_STRATEGIES"];

# Places inside a container, and how two containers work together: ours has its own.
def own:
  ["CONFIG_FILE", "CONFIG_FILE_SRCDIR", "CONFIG_FILE_DST", "DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT", "NODE_NAME",
   "NODE_LABEL", "ONESHOT", "SEND_SIGNAL", "SIGNAL", "PROCESS_TO_SIGNAL", "KUBECONFIG", "NVIDIA_VISIBLE_DEVICES",
   "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_MONITOR_DEVICES"];

def program: (.command // ["nvidia-device-plugin"])[0] | split("/") | last;
def readable: program | IN("nvidia-device-plugin", "config-manager");

# Flags of a command line: [{name, value}]; a word that belongs to none has the name "".
def flags:
  if readable | not then [] else
    reduce ((.command // [])[1:] + (.args // []))[] as $word ([];
      if $word | startswith("-") then
        ($word | ltrimstr("-") | ltrimstr("-")) as $flag
        | ($flag | index("=")) as $at
        | . + [if $at == null then {name: $flag, value: null} else {name: $flag[:$at], value: $flag[$at + 1:]} end]
      elif length > 0 and .[-1].value == null then .[-1].value = $word
      else . + [{name: "", value: $word}] end)
  end;
def variable:
  {"driver-root": "NVIDIA_DRIVER_ROOT", "dev-root": "NVIDIA_DEV_ROOT"}[.] // (ascii_upcase | gsub("-"; "_"));

# Variable -> its entry; a flag outranks the variable, and one that is repeated lists its values.
def settings:
  ((.env // []) | map({(.name): .}) | add // {})
  + ([flags[] | select(.name != "") | {name: (.name | variable), value: (.value // "true")}]
     | group_by(.name) | map({(.[0].name): {name: .[0].name, value: (map(.value) | join(","))}}) | add // {});

def stop($name; $why): {name: $name, why: $why};
def without_comments: split("\n") | map(sub("(^|\\s)#.*$"; "")) | join("\n");

.metadata.name as $daemonset
| .spec.template.spec as $pod
| [$pod.containers[], ($pod.initContainers[]? | select(program == "config-manager"))] as $containers
| [$containers[] | settings] as $all
| (reduce $all[] as $one ({}; . + ($one | with_entries(select(.value.value // "" != ""))))) as $settings
| def setting($name): ($settings[$name] // {}).value;

# --- configuration files
  ($pod.volumes // [] | map({(.name): .}) | add // {}) as $volumes
| [$containers[] | .name as $container | .volumeMounts[]?
   | {name, container: $container, path: (.mountPath | rtrimstr("/")), subPath, volume: $volumes[.name]}] as $mounts
| [$mounts[] | select(.volume.configMap)] as $given
| def content($mount):
    ([$maps[] | select(.metadata.name == $mount.volume.configMap.name)][0].data // {}) as $data
    | if $mount.volume.configMap.items
      then [$mount.volume.configMap.items[] | {(.path): $data[.key]}] | add else $data end;
  ((setting("CONFIG_FILE_SRCDIR") // "") | rtrimstr("/")) as $folder
| (setting("CONFIG_FILE") // "") as $file
| (if $folder == "" then null else [$given[] | select(.path == $folder and .subPath == null)][0] end) as $from_folder
| (if $folder != "" or $file == "" then null else
     [$given[] | . as $mount
      | (if .subPath then select(.path == $file) | .subPath
         else .path as $path | select($file | startswith($path + "/")) | $file[($path | length) + 1:] end) as $key
      | {name: $mount.name, key: $key, text: content($mount)[$key]}][0] end) as $from_file
| (if $from_folder then content($from_folder)
   elif $from_file.text then {"config.yaml": $from_file.text} else null end) as $configs
| [$configs // {} | to_entries[] | {name: .key, text: (.value // "" | without_comments)}] as $texts
| def mentions($pattern): [$texts[] | select(.text | test($pattern)) | "\(.name)"] | join(", ");

# --- components
  ([setting("NVIDIA_DRIVER_ROOT"), ($texts[].text | scan("nvidiaDriverRoot[\"']?\\s*:\\s*[\"']?([^\\s\"',}]+)")[])]
   | map(select(. != null and . != "/")) | unique) as $roots
| mentions("cdi-(cri|annotations)") as $cdi
| mentions("migStrategy[\"']?\\s*:\\s*[\"']?(single|mixed)") as $mig
| mentions("(^|[\\s{,\"'])mps[\"']?\\s*:") as $mps
| [ {name: "observe", why: "NVIDIA's plugin keeps serving"},
    (select($from_folder)
     | {name: "named-configs", why: "ConfigMap \($from_folder.volume.configMap.name): \($configs | keys | join(", "))"}),
    ((setting("DEVICE_LIST_STRATEGY") // "") | select(test("cdi-")) | {name: "cdi", why: "DEVICE_LIST_STRATEGY is \(.)"}),
    ($cdi | select(. != "") | {name: "cdi", why: "a CDI strategy in \(.)"}),
    ((setting("MIG_STRATEGY") // "") | select(. != "" and . != "none") | {name: "mig", why: "MIG_STRATEGY is \(.)"}),
    ($mig | select(. != "") | {name: "mig", why: "migStrategy in \(.)"}),
    ($mps | select(. != "") | {name: "mps", why: "sharing by MPS in \(.)"}),
    ($roots[0] | select(.) | {name: "driver-root", why: "the driver's folder is \(.)"}),
    (select($pod.runtimeClassName == "nvidia") | {name: "runtimeclass-nvidia", why: "runtimeClassName is nvidia"})
  ] as $components

# --- what is not understood
| [ ($containers[] | select(.envFrom) | stop(.name; "container \(.name) takes variables from elsewhere (envFrom)")),
    ($containers[] | select(readable | not)
     | stop(.name; "container \(.name) runs \(program), not nvidia-device-plugin: its settings cannot be read")),
    ($containers[] | flags[] | (.name | variable) as $variable
     | select(.name == "" or ($variable | IN((known + own)[]) | not))
     | if .name == "" then stop(.value; "the word \(.value) in args belongs to no flag")
       else stop(.name; "the flag --\(.name) is not one that is carried along") end),
    ($all[] | to_entries[] | select(.key | IN(known[], "CONFIG_FILE", "CONFIG_FILE_SRCDIR")) | .value
     | select(.valueFrom or (.value // "" | contains("$("))) | stop(.name; "\(.name) has its value from elsewhere (valueFrom)")),
    (known[] | . as $name | [$all[] | .[$name].value // empty] | unique | select(length > 1)
     | stop($name; "\($name) has several values: \(join(", "))")),
    (select($folder != "" and ($from_folder | not))
     | stop("CONFIG_FILE_SRCDIR"; "no ConfigMap is mounted at \($folder), where CONFIG_FILE_SRCDIR points")),
    (select($folder == "" and $file != "" and ($from_file.text | not))
     | stop("CONFIG_FILE"; "\($file), where CONFIG_FILE (--config-file) points, is in no ConfigMap that is mounted there")),
    (select($from_folder and $configs == {})
     | stop("CONFIG_FILE_SRCDIR"; "the ConfigMap \($from_folder.volume.configMap.name) is empty or not there")),
    ([$mounts[] | select(.volume | .configMap or .secret or .projected)
      | select(.name != $from_folder.name and .name != $from_file.name)] | unique_by(.name)[]
     | stop(.name; "the volume \(.name), mounted at \(.path), is not one that the plugin's configuration points to")),
    (select($roots | length > 1) | stop("nvidiaDriverRoot"; "the driver is in several folders: \($roots | join(", "))")),
    ([$components[] | select(.name == "cdi") | .why] | select(. != [])
     | stop("cdi"; "containers get their GPUs by CDI (\(join("; "))). The specification with the driver's libraries is made by NVIDIA's image; ours has no nvidia-ctk. Check that each node has the container toolkit's own (/etc/cdi/nvidia.yaml or /var/run/cdi/nvidia.yaml), or give the agent nvidia-ctk, or configure device nodes only: docs/injection.md, CDI. A node without any of these is not taken over")),
    (select($mps != "" and (setting("MPS_ROOT") // "/run/nvidia/mps") != "/run/nvidia/mps")
     | stop("MPS_ROOT"; "MPS_ROOT is \(setting("MPS_ROOT")): the component mps has /run/nvidia/mps"))
  ] as $stops

# --- the result
| {stop: ($stops | unique | map(select(.name | IN($reviewed | splits("[ ,]+")) | not))),
   say: ([$components | group_by(.name)[] | "component \(.[0].name): \(map(.why) | join("; "))"]
         + [$settings | to_entries[] | select(.key | IN(known[])) | "\(.key)=\(.value.value)"]
         + [select($from_file.text) | "configuration file: \($file)"]
         + [[$all[] | keys[] | select(IN((known + own)[]) | not)] | unique | select(length > 0)
            | "not taken, since our agent does not know them: \(join(", "))"]
         + [select($pod.nodeSelector // {} | length > 0)
            | "not taken: nodeSelector \($pod.nodeSelector | tojson); our agent runs on every Linux node"]),
   components: ($components | map(.name) | unique | map(select(. != "runtimeclass-nvidia"))
                + [select($pod.runtimeClassName == "nvidia") | "runtimeclass-nvidia"]),
   configs: $configs,
   patch: {
     apiVersion: "apps/v1", kind: "DaemonSet",
     metadata: {name: "nodedevices-agent", namespace: "nodedevices-system"},
     spec: {template: {spec: (
       {containers: [
         {name: "agent",
          env: ([$settings[] | select(.name | IN(known[])) | {name, value}]
                + [select($from_file.text) | {name: "CONFIG_FILE", value: "/config/config.yaml"}])}
         + (if $from_file.text then {volumeMounts: [{name: "config", mountPath: "/config", readOnly: true}]} else {} end)],
        volumes: ([select($roots[0]) | {name: "driver-root", hostPath: {path: $roots[0], type: "DirectoryOrCreate"}}]
                  + [select($from_file.text) | {name: "config", configMap: {name: "device-plugin-configs"}}])}
       | if .volumes == [] then del(.volumes) else . end
       | if $pod.imagePullSecrets then .imagePullSecrets = $pod.imagePullSecrets else . end
       | if ($pod.runtimeClassName // "nvidia") != "nvidia" then .runtimeClassName = $pod.runtimeClassName else . end)}}}}
