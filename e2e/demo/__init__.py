"""The main job, end to end: a real Kubernetes, the chart, one DisaggregatedServing, a conversation, a table."""
