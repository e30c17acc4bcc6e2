"""From what changed to what is written: observe, plan, apply, status. The only place that sees all lower layers."""
