"""Results drawn on images."""
