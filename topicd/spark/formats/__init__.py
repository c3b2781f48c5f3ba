"""Values in a format that a schema file describes. Promise: the file is read on the driver alone and travels with the
query; a value that is not of that schema becomes null, as with JSON; what Spark has no type for is refused early.
"""
