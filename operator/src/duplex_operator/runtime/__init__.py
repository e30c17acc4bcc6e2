"""What a long-running operator needs and no kind of object decides: work queue, leader election, health, metrics."""
