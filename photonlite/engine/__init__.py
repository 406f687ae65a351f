"""Where scheduler, runner and requests meet: the tick, the thread that drives it, what callers hold of a request."""
