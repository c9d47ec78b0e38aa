"""Tools for people: the command line, exploring, and what this machine can do. No run uses them."""
