"""`sitecustomize` for the server's processes: put before other folders in PYTHONPATH, it is imported at their start."""
