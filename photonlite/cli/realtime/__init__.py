"""`photonlite realtime`: a source of frames, a question, and a view of what the model finds."""
