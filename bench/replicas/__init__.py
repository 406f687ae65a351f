"""Many replicas on Ray Serve: `python -m bench.replicas`."""
