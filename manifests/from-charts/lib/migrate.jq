# From another chart's values to ours, by a table of that chart. Pure: reads nothing, writes nothing.
#
# A chart is a file beside this folder, with five functions:
#   only_here  top-level keys that no other of these charts has, by which its values are known
#   defaults   what that chart has where nothing is given, as far as it counts here
#   table      a value's name -> what becomes of it, whatever keys it has below:
#                {to: "agent.podAnnotations"}  it is this value of ours
#                {not: "..."}                  ours does without it, and why
#                {stop: "..."}                 a person has to look at it, and why
#                {}                            `more` reads it
#   more       in: all the values; out: set, say, stop and policy (below) for what a table cannot say
#   notes      sentences that are said in any case
#
# Out: values (for our chart), policies (a List of DevicePolicies), say (sentences: what was not taken, and why) and stop
# (sentences: what is not understood, each with the name by which $reviewed passes it).

def set($path; $value): {set: ($path | split(".")), value: $value};
def stop($name; $why): {stop: $name, why: $why};
def say($sentence): {say: $sentence};
def policy($name; $spec):
  {policy: {apiVersion: "nodedevices.io/v1alpha1", kind: "DevicePolicy", metadata: {name: $name}, spec: $spec}};

# One rule for several values, which are all below $above.
def each($above; $names; $rule): $names | map({($above + .): $rule}) | add;

def is_given: IN(null, "", {}, []) | not;
def at($name): getpath($name | split("."));
# Names of secrets, or references to them, as references.
def references: map(if type == "string" then {name: .} else . end);

def leaves($table; $at):
  to_entries[] | ($at + [.key] | join(".")) as $name
  | if (.value | type) == "object" and ($table | has($name) | not) then .key as $key | .value | leaves($table; $at + [$key])
    else select(.value | is_given) | {name: $name, value} end;

# [{name, why}] as sentences, one for each reason.
def reasons:
  to_entries | group_by(.value.why) | sort_by(.[0].key) | map("not taken: \(map(.value.name) | join(", ")): \(.[0].value.why)");

def migrated(defaults; table; more; notes; $reviewed):
  (defaults * .) as $values
  | table as $table
  | [$values | leaves($table; [])] as $given
  | [$given[] | {name, value, rule: $table[.name]}] as $ruled
  | [ ($ruled[] | select(.rule == null) | stop(.name; "not a known value of that chart")),
      ($ruled[] | select(.rule.stop) | stop(.name; .rule.stop)),
      ($ruled[] | select(.rule.to) | set(.rule.to; .value)),
      ($values | more) ] as $found
  | {stop: [$found[] | select(has("stop")) | {name: .stop, why} | select(.name | IN($reviewed | splits("[ ,]+")) | not)],
     values: (reduce ($found[] | select(has("set"))) as $one ({components: {observe: {enabled: true}}};
       setpath($one.set; (getpath($one.set) | if type == "object" then . else {} end)
         as $there | if ($one.value | type) == "object" then $there * $one.value else $one.value end))),
     policies: {apiVersion: "v1", kind: "List", items: [$found[].policy | values]},
     say: (([$ruled[] | select(.rule.not) | {name, why: .rule.not}] | reasons)
       + [$found[].say | values] + notes
       + [$found[].policy | values | "DevicePolicy \(.metadata.name): printed by --policies"])};
