"""The images of the README and the clip."""
