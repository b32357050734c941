"""`python -m penni.cli` is the `penni` command."""

from penni.cli import main

main()
