{{/*
What agent and operator would refuse of the flags and variables that this release gives them, as JSON: a list of texts. A term is
a flag that is given, or one of its values, FLAG=VALUE; FLAG=* where a value is not known here (valueFrom). The table is the
programs' own (_flags.tpl).
*/}}
{{- define "nodedevices.flagProblems" -}}
{{- $root := . }}
{{- $table := include "nodedevices.flagTable" . | fromJson }}
{{- $components := dict "config-dir" "namedConfigs" "devices-dir" "deviceFiles" }}
{{- $problems := list }}
{{- range $program, $file := dict "agent" "agent-daemonset.yaml" "operator" "operator-deployment.yaml" }}
{{- $known := get $table $program }}
{{- $container := dict }}
{{- range (include (printf "%s/%s" $root.Template.BasePath $file) $root | fromYaml).spec.template.spec.containers }}
{{- if eq .name $program }}{{ $container = . }}{{ end }}
{{- end }}
{{- $own := dict }}
{{- range (get $root.Values $program).env }}{{ $_ := set $own (toString .name) true }}{{ end }}
{{- /* Each value with its flag and its place; a flag replaces its variables, but for those that add. */}}
{{- $given := list }}
{{- $byFlag := dict }}
{{- range $container.args }}
{{- $parts := splitn "=" 2 (trimPrefix "--" .) }}
{{- $_ := set $byFlag $parts._0 true }}
{{- $given = append $given (dict "flag" $parts._0 "value" $parts._1 "place" (printf "%s.flags.%s" $program $parts._0)) }}
{{- if hasKey $known.movedFlags $parts._0 }}
{{- $problems = append $problems (printf "%s.flags.%s: no longer a flag; %s" $program $parts._0 (get $known.movedFlags $parts._0)) }}
{{- end }}
{{- end }}
{{- range $container.env }}
{{- $name := .name }}
{{- $flag := get $known.variables $name }}
{{- range $prefix, $adding := $known.prefixes }}
{{- if hasPrefix $prefix $name }}{{ $flag = $adding }}{{ end }}
{{- end }}
{{- $replaced := and (hasKey $known.variables $name) (hasKey $byFlag $flag) }}
{{- if and (not $flag) (has $name $known.alone) }}{{ $flag = $name }}{{ end }}
{{- $place := ternary (printf "%s.env: %s" $program $name) "components" (hasKey $own $name) }}
{{- $value := ternary "*" (get . "value" | toString) (hasKey . "valueFrom") }}
{{- if and $flag (not $replaced) (get . "value" | default (get . "valueFrom")) }}
{{- $given = append $given (dict "flag" $flag "value" $value "place" $place "byVariable" true) }}
{{- else if and (not $flag) (hasPrefix $table.prefix $name) (not (regexMatch $table.serviceLink $name)) }}
{{- $now := get $known.moved $name }}
{{- $problems = append $problems (printf "%s: the %s does not know this variable, and would not start%s" $place $program (ternary (printf "; give %s" $now) "" (hasKey $known.moved $name))) }}
{{- end }}
{{- end }}
{{- $said := dict }}
{{- range $one := $given }}
{{- $values := list $one.value }}
{{- if has $one.flag $known.lists }}{{ $values = splitList "," $one.value }}{{ end }}
{{- if $one.value }}{{ $_ := set $said $one.flag $one.place }}{{ end }}
{{- range $value := $values }}
{{- $value = trim $value }}
{{- if $value }}
{{- $_ := set $said (printf "%s=%s" $one.flag (lower $value)) $one.place }}
{{- if and (has $one.flag (list "probe" "added-probes")) (not (contains "=" $value)) }}
{{- $_ := set $said (printf "probe=%s" $value) $one.place }}
{{- end }}
{{- with ternary (dict "pattern" "^/" "right" "an absolute path") (get $known.written $one.flag) (has $one.flag $known.absolute) }}
{{- if and (not (regexMatch .pattern $value)) (ne $value "*") }}
{{- $problems = append $problems (printf "%s: %s is not allowed; give %s" $one.place $value .right) }}
{{- end }}
{{- end }}
{{- $choices := get $known.choices $one.flag }}
{{- if and $choices $one.byVariable (ne $value "*") (not (has $value $choices)) }}
{{- $problems = append $problems (printf "%s: %s is not allowed; give %s" $one.place $value (join " or " $choices)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $rules := $known.rules }}
{{- if or (hasKey $said "probe") (not (or (hasKey $said "config-file") (hasKey $said "config-dir"))) }}
{{- $rules = concat $rules $known.probeRules }}
{{- end }}
{{- range $rule := $rules }}
{{- $place := get $said $rule.when }}
{{- if $place }}
{{- $what := "" }}
{{- if contains "=" $rule.when }}{{ $what = printf "%s " (splitn "=" 2 $rule.when)._1 }}{{ end }}
{{- $met := not $rule.needs }}
{{- $wanted := list }}
{{- range $term := $rule.needs }}
{{- $flag := (splitn "=" 2 $term)._0 }}
{{- if or (hasKey $said $term) (and (contains "=" $term) (hasKey $said (printf "%s=*" $flag))) }}{{ $met = true }}{{ end }}
{{- $wanted = append $wanted (ternary (printf "components.%s" (get $components $term)) (printf "%s.flags.%s" $program $term) (hasKey $components $term)) }}
{{- end }}
{{- if not $met }}
{{- $problems = append $problems (printf "%s: %sneeds %s" $place $what (join " or " $wanted)) }}
{{- end }}
{{- range $term := $rule.excludes }}
{{- if hasKey $said $term }}
{{- $other := ternary (printf "components.%s" (get $components $term)) (printf "%s.flags.%s" $program $term) (hasKey $components $term) }}
{{- $problems = append $problems (printf "%s: %scannot be combined with %s; give one of the two" $place $what $other) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson (uniq $problems) }}
{{- end }}
