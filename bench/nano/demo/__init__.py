"""The images of the README, the clip, and what the shipped checkpoint finds in them."""
