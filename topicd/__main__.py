"""`python -m topicd` is `topicd`."""

from topicd.supervisor.main import main

main(prog_name="topicd")
