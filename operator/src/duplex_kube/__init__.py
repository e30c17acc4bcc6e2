"""A small Kubernetes client over plain dicts: server-side apply, list and watch, events. Knows no domain."""
