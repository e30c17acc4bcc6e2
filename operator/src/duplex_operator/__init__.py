"""The Kubernetes operator for DisaggregatedServing resources."""
