"""From tile programs to Triton source."""
