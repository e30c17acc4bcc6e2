"""Who serves and by what policy: the fleet document, the engines that are there, and the choice among them. Pure."""
