{{- define "gpuward.name" -}}
{{- $name := .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- fail (printf "release name %q: Services need a letter first, and no dots; set nameOverride" $name) }}
{{- end }}
{{- $name -}}
{{- end }}

{{- define "gpuward.selector" -}}
app.kubernetes.io/name: gpuward
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpuward.labels" -}}
app.kubernetes.io/name: gpuward
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpuward.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- /* A class belongs to no namespace, so its name has the release's. */}}
{{- define "gpuward.priorityClass" -}}
{{- if .Values.priorityClass.name }}{{ .Values.priorityClass.name }}{{ else if .Values.priorityClass.create }}{{ include "gpuward.name" . }}{{ with .Release.Namespace }}.{{ . }}{{ end }}{{ end }}
{{- end }}

{{- /* What the pods of all daemons have. */}}
{{- define "gpuward.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with include "gpuward.priorityClass" . }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* What the pods of controllers and gateways have. */}}
{{- define "gpuward.server" -}}
serviceAccountName: {{ include "gpuward.name" .root }}
{{ include "gpuward.pod" .root }}
securityContext:
  runAsNonRoot: true
  runAsUser: 8420
  runAsGroup: 8420
  # The files of Secrets are root's: without it this account cannot read them.
  fsGroup: 8420
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "gpuward.selector" . | nindent 8 }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpuward.serverEnvironment" -}}
env:
  - {name: GPUWARD_LOG_FORMAT, value: json}
  {{- range $name, $value := .root.Values.settings }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
  {{- range $name, $value := .more }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
envFrom:
  - secretRef: {name: {{ .root.Values.secrets.database }}}
  - secretRef: {name: {{ .root.Values.secrets.settings }}, optional: true}
{{- end }}

{{- define "gpuward.serverSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "gpuward.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "gpuward.name" .root }}-{{ .component }}
  labels: {{ include "gpuward.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{ include "gpuward.selector" . | nindent 6 }}
{{- end }}

{{- define "gpuward.scheme" -}}
{{- if .Values.tls.secretName }}https{{ else }}http{{ end }}
{{- end }}
