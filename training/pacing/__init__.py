"""How far rollouts may be ahead of updates: pure state machines, without files and without a clock of their own."""
