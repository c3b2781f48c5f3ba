"""The daemon's first process: it owns configuration, shared memory and the lives of all others, and no
data.
"""
