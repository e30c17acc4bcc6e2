"""Scenarios on a real cluster with kubelet and the simulator; each asserts answers, not only absence of errors."""
