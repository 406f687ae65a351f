"""Wall and CPU seconds by environment, on cores that are idle or busy: see `python -m bench.threads --help`."""
