{{/*
What every pod with the operator's program has: the operator itself, the clean-up and the check.
*/}}
{{- define "nodedevices.operator.pod" -}}
automountServiceAccountToken: false # mounted below, bound and short-lived
{{- include "nodedevices.pullSecrets" . }}
nodeSelector:
  {{- merge (dict "kubernetes.io/os" "linux") .Values.operator.nodeSelector | toYaml | nindent 2 }}
{{- with .Values.operator.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.operator.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
dnsPolicy: Default
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
volumes:
{{ include "nodedevices.tokenVolume" . }}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- end }}

{{- define "nodedevices.operator.container" -}}
image: {{ include "nodedevices.operator.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "nodedevices.unprivileged" . | nindent 2 }}
resources:
  {{- toYaml .Values.operator.resources | nindent 2 }}
volumeMounts:
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end }}
