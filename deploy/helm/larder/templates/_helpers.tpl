{{- define "larder.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "larder.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "larder.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "larder.selector" . }}
{{- end -}}

{{- define "larder.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{/* What every pod of Larder has. Service links would set variables such as LARDER_PORT, which Larder refuses. */}}
{{- define "larder.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
terminationGracePeriodSeconds: 30
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A value as text. Helm reads each number of a values file as a float, which from a million on prints as 1e+06. */}}
{{- define "larder.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ toString . }}{{ end -}}
{{- end -}}

{{/* Whole numbers with commas between them. */}}
{{- define "larder.whole" -}}
{{- range $at, $number := . }}{{ if $at }},{{ end }}{{ int64 $number }}{{ end -}}
{{- end -}}

{{- define "larder.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ include "larder.text" $value | quote }}
{{- end }}
{{- end -}}

{{- define "larder.hosts" -}}
{{- $name := include "larder.fullname" . -}}
{{- $own := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) -}}
{{- $hosts := concat $own .Values.manager.allowedHosts -}}
{{- if .Values.ingress.enabled }}{{ $hosts = append $hosts .Values.ingress.host }}{{ end -}}
{{- join "," $hosts -}}
{{- end -}}

{{- define "larder.nodeName" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end -}}

{{/* The paths of the directories of disk tiers, as a JSON list. */}}
{{- define "larder.tierPaths" -}}
{{- $paths := .Values.dataplane.tiers.hostPaths -}}
{{- range .Values.dataplane.tiers.claims }}{{ $paths = append $paths .mountPath }}{{ end -}}
{{- toJson $paths -}}
{{- end -}}

{{- define "larder.tierMounts" -}}
{{- range $at, $path := .Values.dataplane.tiers.hostPaths }}
- name: tier-path-{{ $at }}
  mountPath: {{ $path | quote }}
{{- end }}
{{- range $at, $claim := .Values.dataplane.tiers.claims }}
- name: tier-claim-{{ $at }}
  mountPath: {{ $claim.mountPath | quote }}
  subPathExpr: $(NODE_NAME)
{{- end }}
{{- end -}}
