"""``python -m megatrace``."""

from megatrace.cli.main import main

if __name__ == "__main__":
    main()
