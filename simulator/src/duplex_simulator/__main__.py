"""`python -m duplex_simulator`."""

from .cli import main

main()
