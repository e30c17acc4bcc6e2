"""Where the fleet document and the engines come from: Kubernetes, or a file."""
