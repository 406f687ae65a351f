"""Objects, their sprites, and the two generators of images with known contents."""
