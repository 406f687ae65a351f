"""The server under load, and what HTTP adds to a request: see `python -m bench.serve --help`."""
