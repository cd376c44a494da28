"""`python -m mirrorshot` is the command `mirrorshot`."""

from mirrorshot.cli import main

if __name__ == "__main__":
    main(prog_name="mirrorshot")
