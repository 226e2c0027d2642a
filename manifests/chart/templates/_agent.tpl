{{/*
What the container with the hardware has: that of the probes, or, with oneContainer, the agent's.
*/}}
{{- define "nodedevices.hardware.env" -}}
{{- $c := .Values.components }}
{{- if $c.mig.enabled }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- end }}

{{- define "nodedevices.hardware.mounts" -}}
{{- $c := .Values.components }}
{{- if $c.driverRoot.enabled }}
- name: driver-root
  mountPath: /driver-root
  readOnly: true
  mountPropagation: HostToContainer # what is mounted there later is seen as well
{{- end }}
{{- if $c.hostDev.enabled }}
- name: host-dev
  mountPath: /driver-root/dev
  readOnly: true
  mountPropagation: HostToContainer
{{- end }}
{{- if $c.hostSys.enabled }}
- name: host-sys
  mountPath: /host-sys
  readOnly: true
{{- end }}
{{- if $c.sriov.enabled }}
- name: host-net # says which card has the default route
  mountPath: /host-net
  readOnly: true
{{- end }}
{{- if $c.amdExporter.enabled }}
- name: amd-exporter
  mountPath: /var/lib/amd-metrics-exporter
  readOnly: true
{{- end }}
{{- end }}

{{- define "nodedevices.hardware.securityContext" -}}
{{ include "nodedevices.unprivileged" . }}
{{- if .Values.components.mig.enabled }}
  add: [SYS_ADMIN] # without it the nvidia container runtime shows no MIG devices
{{- end }}
{{- end }}

{{/*
Variables and mounts of the files that components bring, of {root, probe}; probe: those that probes read, too.
*/}}
{{- define "nodedevices.files.env" -}}
{{- $values := .root.Values.components }}
{{- $probe := .probe }}
{{- range $name, $file := include "nodedevices.configFiles" .root | fromYaml }}
{{- if and (index $values $name).enabled (or (not $probe) $file.alsoProbe) }}
- name: {{ $file.variable | quote }}
  value: {{ $file.folder }}/{{ $file.key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "nodedevices.files.mounts" -}}
{{- $values := .root.Values.components }}
{{- $probe := .probe }}
{{- range $name, $file := include "nodedevices.configFiles" .root | fromYaml }}
{{- if and (index $values $name).enabled (or (not $probe) $file.alsoProbe) }}
- name: {{ $file.volume | quote }}
  mountPath: {{ $file.folder }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "nodedevices.files.volumes" -}}
{{- $values := .Values.components }}
{{- range $name, $file := include "nodedevices.configFiles" . | fromYaml }}
{{- if (index $values $name).enabled }}
- name: {{ $file.volume | quote }}
  configMap:
    name: {{ $file.configMap | quote }}
    optional: true # without it a new node offers no such device, and ConfigApplied says so
{{- end }}
{{- end }}
{{- end }}
