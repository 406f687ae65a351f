"""Bodies of requests and answers: read, checked and described by one model each."""
