"""Images: from any source to 8-bit RGB, and on to the crops that the vision encoder reads."""
