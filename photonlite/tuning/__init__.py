"""What runs side by side on one card: measured, searched for, and written down as a schedule."""
