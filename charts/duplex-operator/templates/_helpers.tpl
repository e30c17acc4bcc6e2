{{- define "duplex.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else if contains .Release.Name .Chart.Name -}}
{{- .Chart.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "duplex.selectorLabels" -}}
app.kubernetes.io/name: duplex-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "duplex.labels" -}}
{{ include "duplex.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: duplex
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "duplex.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "duplex.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name an account, or let the chart create one" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "duplex.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Seeing nodes takes a right on the whole cluster, which an installation for some namespaces has not. */}}
{{- define "duplex.watchNodes" -}}
{{- and .Values.watchNodes (empty .Values.watchNamespaces) -}}
{{- end -}}

{{/* What the operator may do where it watches. Each rule says what it is for. */}}
{{- define "duplex.rules" -}}
# The servings themselves: watched; only their status is written.
- apiGroups: [duplex.dev]
  resources: [disaggregatedservings]
  verbs: [get, list, watch]
- apiGroups: [duplex.dev]
  resources: [disaggregatedservings/status]
  verbs: [patch]
# One ServingRole for each role: made by the operator, its number written by it or by an autoscaler.
- apiGroups: [duplex.dev]
  resources: [servingroles]
  verbs: [get, list, watch, create, patch]
- apiGroups: [duplex.dev]
  resources: [servingroles/status]
  verbs: [patch]
# Owner references that block the owner's deletion need this where the admission plugin for them is on.
- apiGroups: [duplex.dev]
  resources: [disaggregatedservings/finalizers]
  verbs: [update]
# Children of servings. Server-side apply is a patch, and of a new object a create too. The garbage collector ends them
# with their serving; the operator itself deletes only what one serving may have and another not.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
# Held only because routers are given it: nobody can give what they do not have.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# Why an engine is not ready is read from its pods; one that cannot reach its peers is deleted, so that another comes.
# One that is to go is marked with an annotation, until nobody needs it any more.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
