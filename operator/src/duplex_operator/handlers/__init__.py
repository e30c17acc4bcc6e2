"""kopf as the host of the watch of servings: each event says that a key has changed, and nothing else."""
