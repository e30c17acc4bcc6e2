"""A real local Kubernetes without Docker: control plane, nodes, images, faults."""
