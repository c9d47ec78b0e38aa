"""Tools for people: the command line, exploring, and the capabilities of this machine. No run uses them."""
