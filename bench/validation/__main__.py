"""`python -m bench.validation`."""

from bench.validation.command import main

if __name__ == "__main__":
    main()
