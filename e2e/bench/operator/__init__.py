"""The operator with a thousand servings and ten thousand pods, on a real API server: `make bench-operator`."""
