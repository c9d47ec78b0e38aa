"""The specialised form of a program: a second lowering, to Gluon, in which a role that multiplies has separate warps
for loading and for notifying. `takes.py` says which programs it takes."""
