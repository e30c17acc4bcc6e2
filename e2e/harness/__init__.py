"""What the demo and the scenarios share: install the operator, apply a serving, wait, hold conversations."""
