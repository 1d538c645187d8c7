"""`python -m minka`: the same as the `minka` command."""

from minka.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
