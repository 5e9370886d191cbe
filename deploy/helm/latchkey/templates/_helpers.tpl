{{- define "latchkey.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "latchkey.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "latchkey.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "latchkey.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "latchkey.selectorLabels" -}}
app.kubernetes.io/name: {{ include "latchkey.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "latchkey.labels" -}}
{{ include "latchkey.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: latchkey
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "latchkey.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "latchkey.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the existing ServiceAccount, as serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "latchkey.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The subject of all bindings. */}}
{{- define "latchkey.subjects" -}}
subjects:
- kind: ServiceAccount
  namespace: {{ .Release.Namespace }}
  name: {{ include "latchkey.serviceAccountName" . }}
{{- end }}

{{- define "latchkey.impersonates" -}}
{{- if has .Values.credentials.type (list "impersonation" "constrained-impersonation") }}true{{ end }}
{{- end }}

{{/* Adds labels and annotations to an object of a file: dict "object" … "context" $ "annotations" … */}}
{{- define "latchkey.object" -}}
{{- $labels := include "latchkey.labels" .context | fromYaml }}
{{- $metadata := .object.metadata }}
{{- $_ := set $metadata "labels" (merge (default dict $metadata.labels) $labels) }}
{{- with .annotations }}
{{- $_ := set $metadata "annotations" (merge (default dict $metadata.annotations) .) }}
{{- end }}
{{- toYaml .object }}
{{- end }}

{{/* Renders the objects of a file: dict "text" … "context" $ "annotations" … */}}
{{- define "latchkey.file" -}}
{{- range $document := regexSplit "(?m)^---$" .text -1 }}
---
{{ include "latchkey.object" (dict "object" (fromYaml $document) "context" $.context "annotations" $.annotations) }}
{{- end }}
{{- end }}

{{/* Whether the status page is on the network. */}}
{{- define "latchkey.statusSecure" -}}
{{- if and .Values.statusPage.enabled .Values.statusPage.secure }}true{{ end }}
{{- end }}

{{/* The Secrets with certificates, by the folder of /var/run/latchkey that they are in. */}}
{{- define "latchkey.certificates" -}}
{{- if and .Values.metrics.enabled .Values.metrics.certificateSecret }}
metrics: {{ .Values.metrics.certificateSecret | quote }}
{{- end }}
{{- if include "latchkey.statusSecure" . }}
status: {{ .Values.statusPage.certificateSecret | quote }}
{{- end }}
{{- end }}

{{- define "latchkey.shares" -}}
{{- if or .Values.sharing.buckets .Values.sharing.ring }}true{{ end }}
{{- end }}

{{/* Whether the replicas are a fleet, whose states one of them serves. */}}
{{- define "latchkey.fleet" -}}
{{- if and .Values.stateAPI.enabled (include "latchkey.shares" .) }}true{{ end }}
{{- end }}

{{/* The flag that says how replicas work together. */}}
{{- define "latchkey.sharingFlag" -}}
{{- if .Values.sharing.buckets }}--buckets={{ .Values.sharing.buckets }}
{{- else if .Values.sharing.ring }}--ring={{ .Values.sharing.ring }}
{{- else }}--leader-elect{{ end }}
{{- end }}

{{/* Ways of sharing that the manager refuses, or that cannot work. */}}
{{- define "latchkey.checkSharing" -}}
{{- if and .Values.sharing.buckets .Values.sharing.ring }}
{{- fail "sharing: buckets and ring exclude each other" }}
{{- end }}
{{- if and .Values.sharing.ring (eq .Values.extensions.kind "ClusterExtension") }}
{{- fail "sharing.ring: kubernetes-controller-sharding moves no objects of cluster-scoped kinds, such as ClusterExtension; use sharing.buckets" }}
{{- end }}
{{- if and .Values.sharing.buckets (gt (int .Values.replicas) (int .Values.sharing.buckets)) }}
{{- fail (printf "sharing.buckets: %d replicas cannot share %d buckets; take about 20 for each replica" (int .Values.replicas) (int .Values.sharing.buckets)) }}
{{- end }}
{{- end }}

{{/* What older versions of Kubernetes cannot do. */}}
{{- define "latchkey.checkKubernetes" -}}
{{- $version := .Capabilities.KubeVersion.Version }}
{{- if and .Values.stateAPI.enabled (semverCompare "<1.34.0-0" $version) }}
{{- fail (printf "stateAPI.enabled: Kubernetes %s is older than 1.34, and would not reach the state API; no namespace could be deleted then" $version) }}
{{- end }}
{{- if and (eq .Values.credentials.type "constrained-impersonation") (semverCompare "<1.36.0-0" $version) }}
{{- fail (printf "credentials.type=constrained-impersonation: Kubernetes %s is older than 1.36" $version) }}
{{- end }}
{{- end }}

{{/* Two servers of the manager cannot have one port, and a page that is off is not secure. */}}
{{- define "latchkey.checkPorts" -}}
{{- if and .Values.statusPage.secure (not .Values.statusPage.enabled) }}
{{- fail "statusPage.secure: also set statusPage.enabled=true" }}
{{- end }}
{{- $ports := dict "8081" "the probes" }}
{{- range $name := list "metrics" "stateAPI" "statusPage" }}
{{- $server := index $.Values $name }}
{{- if $server.enabled }}
{{- $port := toString $server.port }}
{{- with index $ports $port }}
{{- fail (printf "%s.port: %s is the port of %s" $name $port .) }}
{{- end }}
{{- $_ := set $ports $port $name }}
{{- end }}
{{- end }}
{{- if include "latchkey.fleet" . }}
{{- with index $ports (toString .Values.stateAPI.peerPort) }}
{{- fail (printf "stateAPI.peerPort: %s is the port of %s" (toString $.Values.stateAPI.peerPort) .) }}
{{- end }}
{{- end }}
{{- end }}
