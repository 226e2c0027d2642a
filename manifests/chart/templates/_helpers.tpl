{{/*
Labels of every object. They are in no selector and in no pod, so that no change of them restarts anything.
*/}}
{{- define "nodedevices.labels" -}}
app.kubernetes.io/part-of: nodedevices
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
registry/repository:tag@digest, of {root, image}; without a digest, registry/repository:tag.
*/}}
{{- define "nodedevices.image" -}}
{{- with .root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- .image.repository }}:{{ .image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "nodedevices.agent.image" -}}
{{ include "nodedevices.image" (dict "root" . "image" .Values.agent.image) }}
{{- end }}

{{- define "nodedevices.operator.image" -}}
{{ include "nodedevices.image" (dict "root" . "image" .Values.operator.image) }}
{{- end }}

{{- define "nodedevices.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nodedevices.operatorNamespace" -}}
{{- if .Values.components.operatorNamespace.enabled -}}
{{ .Values.components.operatorNamespace.name }}
{{- else -}}
{{ .Release.Namespace }}
{{- end -}}
{{- end }}

{{/*
args: of a map of flags. A list becomes one flag with commas; whole numbers stay whole (helm reads 1073741824 as a float,
and would write 1.073741824e+09).
*/}}
{{- define "nodedevices.args" -}}
{{- with . }}
args:
{{- range $name, $value := . }}
{{- if kindIs "slice" $value }}
{{- $value = join "," $value }}
{{- else if kindIs "float64" $value }}
{{- $value = ternary (int64 $value) $value (eq $value (floor $value)) }}
{{- end }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The API server's token, bound to the pod and short-lived, in the place where clients look for it.
*/}}
{{- define "nodedevices.tokenVolume" -}}
- name: token
  projected:
    defaultMode: 0440
    sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: 3600
    - configMap:
        name: kube-root-ca.crt
        items:
        - key: ca.crt
          path: ca.crt
    - downwardAPI:
        items:
        - path: namespace
          fieldRef:
            apiVersion: v1
            fieldPath: metadata.namespace
{{- end }}

{{- define "nodedevices.unprivileged" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
