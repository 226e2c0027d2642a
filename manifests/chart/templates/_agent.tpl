{{/*
What the container with the hardware has.
*/}}
{{- define "nodedevices.hardware.mounts" -}}
{{- $c := .Values.components }}
{{- if $c.driverRoot.enabled }}
- name: driver-root
  mountPath: /driver-root
  readOnly: true
  mountPropagation: HostToContainer # what is mounted there later is seen as well
{{- end }}
{{- if $c.allHardware.enabled }}
- name: host-dev
  mountPath: /driver-root/dev
  readOnly: true
  mountPropagation: HostToContainer
- name: host-sys
  mountPath: /host-sys
  readOnly: true
- name: host-net # says which card has the default route
  mountPath: /host-net
  readOnly: true
- name: amd-exporter
  mountPath: /var/lib/amd-metrics-exporter
  readOnly: true
{{- end }}
{{- end }}

{{/*
Variable and mount of the files that describe devices, which agent and probes read.
*/}}
{{- define "nodedevices.files.env" -}}
{{- if .Values.components.deviceFiles.enabled }}
- name: NODEDEVICES_DEVICES_DIR
  value: /etc/nodedevices/devices
{{- end }}
{{- end }}

{{- define "nodedevices.files.mounts" -}}
{{- if .Values.components.deviceFiles.enabled }}
- name: device-files
  mountPath: /etc/nodedevices/devices
  readOnly: true
{{- end }}
{{- end }}
