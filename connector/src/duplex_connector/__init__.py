"""What engines and all other parts share: the contract, the proof, and the guarded NixlConnector."""
